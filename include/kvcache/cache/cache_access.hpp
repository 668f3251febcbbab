// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/reserve_options.hpp>
#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/core/contract.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/page_table.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/index/concept.hpp>
#include <kvcache/locking/concept.hpp>
#include <kvcache/observer/concept.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

template <class Cache>
class basic_tenant;

/// The cache as its tier, its tenants, its sequences and its leases see it. Not for hosts. Each function takes the
/// cache's lock, except those that require it to be held.
class cache_access {
public:
    // For the tier.

    /// Matches a prompt against the pages in memory. `loaded` of its tokens came from the tier just now. The observer
    /// gets the match event now if `emits`, otherwise by emit_match().
    template <class Cache>
    [[nodiscard]] static auto match_resident(Cache& cache, std::uint32_t tenant, std::span<const token_id> tokens,
                                             bool emits, std::size_t loaded) {
        const std::lock_guard guard(cache.lock_);
        const std::size_t page_tokens = cache.shape_.tokens;
        auto known = cache.sequences_.fresh();
        const index_match& found = cache.pages_.find(tenant, tokens);
        known->tenant = tenant;
        known->prompt = tokens.size();
        known->tokens.assign(tokens.first(found.tokens));
        known->table.reserve(found.pages.size());
        std::size_t left = found.tokens;
        for (const page_id page : found.pages) {
            const std::size_t rows = std::min(left, page_tokens);
            known->table.push_back({.page = page, .count = static_cast<std::uint32_t>(rows)});
            left -= rows;
        }
        const std::size_t kept = cache.sequences_.residual().kept(*known, found.tokens);
        known->tokens.truncate(kept);
        known->drop_entries(known->cut(kept));
        const auto pages = std::span(found.pages).first(known->table.size());
        if (emits)
            cache.pages_.tell({event_kind::matched, kept, tokens.size(), pages.size(), pages});
        typename Cache::match_type made{make_sequence(cache, std::move(known)), tokens.size(), found};
        made.loaded_ = std::min(loaded, kept);
        return made;
    }

    /// Sends the observer the event of a match that was made without one.
    template <class Cache, class Match>
    [[nodiscard]] static Match emit_match(Cache& cache, Match found) {
        std::vector<page_id> pages;
        for (const page_entry& entry : found.known_.table())
            pages.push_back(entry.page);
        const std::lock_guard guard(cache.lock_);
        cache.pages_.tell({event_kind::matched, found.tokens(), found.of(), pages.size(), pages});
        return found;
    }

    /// Expected seconds to compute `rows` rows from position `first` on, from the leases committed so far.
    template <class Cache>
    [[nodiscard]] static double prefill_seconds(const Cache& cache, std::size_t first, std::size_t rows) {
        const std::lock_guard guard(cache.lock_);
        return cache.pages_.seconds(first, rows);
    }

    // For tenants. Tenant 0 is the cache's own.

    template <class Cache>
    [[nodiscard]] static auto match(Cache& cache, std::uint32_t tenant, std::span<const token_id> tokens) {
        return cache.tier_.match(cache, tenant, tokens);
    }

    template <class Cache>
    [[nodiscard]] static bool tier_may_know(Cache& cache, std::uint32_t tenant, std::span<const token_id> tokens) {
        return cache.tier_.may_know(cache, tenant, tokens);
    }
    template <class Cache>
    static std::size_t prefetch(Cache& cache, std::uint32_t tenant, std::span<const token_id> tokens) {
        return cache.tier_.prefetch(cache, tenant, tokens);
    }

    /// An empty sequence of a tenant.
    template <class Cache>
    [[nodiscard]] static auto open(Cache& cache, std::uint32_t tenant) {
        const std::lock_guard guard(cache.lock_);
        auto state = cache.sequences_.fresh();
        state->tenant = tenant;
        return make_sequence(cache, std::move(state));
    }

    // For chunk reuse, which holds the lock over several of these calls.

    /// The cache, from itself or from a tenant of it.
    template <class Cache>
    [[nodiscard]] static Cache& cache_of(Cache& cache) noexcept {
        return cache;
    }
    template <class Cache>
    [[nodiscard]] static Cache& cache_of(const basic_tenant<Cache>& tenant) noexcept {
        return *tenant.cache_;
    }
    template <class Cache>
    [[nodiscard]] static Cache& cache_of(basic_tenant<Cache>& tenant) noexcept {
        return *tenant.cache_;
    }

    template <class Cache>
    [[nodiscard]] static auto& lock(Cache& cache) noexcept {
        return cache.lock_;
    }
    /// The page manager. Requires: the cache is locked.
    template <class Cache>
    [[nodiscard]] static auto& pages(Cache& cache) noexcept {
        return cache.pages_;
    }
    template <class Sequence>
    [[nodiscard]] static sequence_state& state(const Sequence& of) noexcept {
        return of.state();
    }

    // For sequences.

    template <class Cache>
    static void release(Cache& cache, std::unique_ptr<sequence_state> state) noexcept {
        const std::lock_guard guard(cache.lock_);
        const std::uint64_t before = cache.sequences_.prompts_ended();
        cache.sequences_.leave(std::move(state));
        notify(cache, before);
    }

    template <class Cache>
    [[nodiscard]] static auto fork(Cache& cache, const sequence_state& from, std::size_t tokens) {
        const std::lock_guard guard(cache.lock_);
        require(tokens <= from.tokens.size() && !from.lease.open, "a fork lies inside a sequence without a lease");
        auto made = cache.sequences_.fresh();
        made->share(from, cache.sequences_.residual().kept(from, tokens), cache.shape_.tokens);
        return make_sequence(cache, std::move(made));
    }

    template <class Cache>
    static void set_cacheable_limit(Cache& cache, sequence_state& state, std::size_t tokens) {
        const std::lock_guard guard(cache.lock_);
        state.cacheable = tokens;
    }

    template <class Cache>
    static void truncate(Cache& cache, sequence_state& state, std::size_t tokens) {
        const std::lock_guard guard(cache.lock_);
        require(tokens <= state.tokens.size() && !state.lease.open,
                "a truncation lies inside a sequence without a lease");
        cache.sequences_.truncate(state, cache.sequences_.residual().kept(state, tokens));
    }

    template <class Cache>
    [[nodiscard]] static result<typename Cache::sequence> erase_range(Cache& cache, const sequence_state& from,
                                                                      std::size_t first, std::size_t count) {
        const std::lock_guard guard(cache.lock_);
        require(first <= from.tokens.size() && count <= from.tokens.size() - first && !from.lease.open,
                "an erased range lies inside a sequence without a lease");
        auto kept = cache.sequences_.fresh();
        kept->share(from, first, cache.shape_.tokens);
        const auto after = kept->leave_out(from, first, count);
        cache.sequences_.enter(*kept);
        const bool room = after.size() <= cache.pages_.room(from.tenant);
        if (!room || !cache.sequences_.copy_rows(*kept, cache.codec_, after)) {
            cache.sequences_.leave(std::move(kept));
            const std::size_t rows = from.tokens.size() - first - count, bytes = cache.codec_.page_bytes();
            return room ? cache.sequences_.refuse_storage(from, rows, after.size(), bytes)
                        : cache.sequences_.refuse(from, rows, after.size(), bytes);
        }
        typename Cache::sequence made{cache, std::move(kept)};
        return made;
    }

    /// The sequence of a state, which holds its pages from now on. Requires: the cache is locked.
    template <class Cache>
    [[nodiscard]] static auto make_sequence(Cache& cache, std::unique_ptr<sequence_state> state) noexcept {
        cache.sequences_.enter(*state);
        return typename Cache::sequence{cache, std::move(state)};
    }

    // For leases.

    /// Reserves rows. Errors, exceptions: those of the cache's reserve. Requires: the cache is locked.
    template <class Cache>
    [[nodiscard]] static result<typename Cache::lease> reserve(Cache& cache, typename Cache::sequence& to,
                                                               std::size_t rows, reserve_options options) {
        sequence_state& state = to.state_for(cache);
        require(!state.lease.open, "a sequence has one lease at a time");
        if (auto reserved = cache.sequences_.reserve(state, cache.codec_, rows, options); !reserved)
            return reserved.error();
        return make_lease(cache, state);
    }

    template <class Cache>
    static void commit(Cache& cache, sequence_state& state, std::span<const token_id> tokens) {
        {
            const std::lock_guard guard(cache.lock_);
            const std::uint64_t before = cache.sequences_.prompts_ended();
            cache.sequences_.commit(state, tokens);
            cache.pages_.tell({event_kind::stored, tokens.size(), 0, 0});
            notify(cache, before);
        }
        cache.tier_.store(cache, state);
    }

    /// Wakes the threads that wait for the lease of a prompt, if one has ended since there were `before`.
    template <class Cache>
    static void notify([[maybe_unused]] Cache& cache, [[maybe_unused]] std::uint64_t before) noexcept {
        if constexpr (waiting_state<typename Cache::locking_type>)
            if (cache.sequences_.prompts_ended() != before)
                cache.lock_.notify();
    }
    template <class Cache>
    static void commit_in_place(Cache& cache, sequence_state& state, std::span<const token_id> tokens) {
        const std::lock_guard guard(cache.lock_);
        const std::uint64_t before = cache.sequences_.prompts_ended();
        cache.sequences_.commit_unmeasured(state, tokens);
        cache.pages_.tell({event_kind::stored, tokens.size(), 0, 0});
        notify(cache, before);
    }

    template <class Cache>
    static void rollback(Cache& cache, sequence_state& state) noexcept {
        const std::lock_guard guard(cache.lock_);
        const std::uint64_t before = cache.sequences_.prompts_ended();
        cache.sequences_.undo(state);
        notify(cache, before);
    }

    /// A lease of rows that a sequence's state already has. Requires: the cache is locked.
    template <class Cache>
    [[nodiscard]] static auto make_lease(Cache& cache, sequence_state& state) {
        return typename Cache::lease{cache, state};
    }

    /// The error for rows that need more pages than there are. Requires: the cache is locked.
    template <class Cache>
    [[nodiscard]] static error refuse(Cache& cache, const sequence_state& state, std::size_t rows, std::size_t pages) {
        return cache.sequences_.refuse(state, rows, pages, cache.codec_.page_bytes());
    }

    /// Full-precision rows that a lease will attach to the page of a table entry; empty if it attaches none.
    template <class Cache>
    [[nodiscard]] static std::span<std::byte> residual_bytes(const Cache& cache, const sequence_state& state,
                                                             std::size_t entry) {
        auto* rows = cache.sequences_.residual().given(state, entry);
        return rows != nullptr ? rows->bytes() : std::span<std::byte>();
    }
};

}} // namespace kvcache
