// SPDX-License-Identifier: MIT
#pragma once

// Longer than 300 lines: the composition, of short functions that each join several books.

#include <kvcache/cache/lease.hpp>
#include <kvcache/cache/match.hpp>
#include <kvcache/cache/page_books.hpp>
#include <kvcache/cache/sequence.hpp>
#include <kvcache/cache/sequence_books.hpp>
#include <kvcache/cache/stats.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/locking/concept.hpp>
#include <kvcache/recompute/concept.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvcache {

/// A KV cache: keys and values of past tokens, found by prefix, kept in coded pages, shared and copied on write.
/// Requires: it outlives its sequences, matches and leases. It does not move.
template <codec_policy Codec, storage_policy Storage, hash_policy Hash, index_policy Index, eviction_policy Eviction,
          recompute_policy Recompute, observer_policy Observer, locking_policy Locking>
class basic_cache {
public:
    using codec_type = decltype(std::declval<const Codec&>().open(page_shape{}));
    using storage_type = decltype(std::declval<const Storage&>().open(0, 0));
    using sequence = basic_sequence<basic_cache>;
    using match_type = basic_match<basic_cache>;
    using lease = basic_lease<basic_cache>;
    using locking_type = typename Locking::state;

    /// `tenants` is how many there may be; zero for a cache that its user alone has.
    basic_cache(std::size_t tenants, identity id, page_shape shape, budget limit, Codec codec, Storage storage,
                Hash hash, Index index, Eviction eviction, Recompute recompute, Observer observer)
        : shape_(checked(shape)),
          codec_(codec.open(shape)),
          identity_(complete(std::move(id))),
          books_(shape, pages_in(limit), codec_.page_bytes(), tenants, page_writer<codec_type>, identity_, storage,
                 hash, index, eviction, observer),
          hash_(std::move(hash)),
          sequences_(books_, shape.tokens, coded()),
          recompute_(recompute.open(shape)) {}

    basic_cache(const basic_cache&) = delete;
    basic_cache& operator=(const basic_cache&) = delete;

    /// The longest known run of `tokens` that can be continued, pinned: whole pages where the codec codes whole pages.
    /// Cost: O(tokens).
    [[nodiscard]] match_type match(std::span<const token_id> tokens) { return match_as(0, tokens); }
    [[nodiscard]] match_type match_as(std::uint32_t tenant, std::span<const token_id> tokens) {
        const std::lock_guard guard(lock_);
        const index_match found = books_.index().match(tenant, tokens);
        auto known = std::make_unique<sequence_state>();
        known->tenant = tenant;
        known->prompt = tokens.size();
        known->tokens.assign(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(found.tokens));
        std::size_t left = found.tokens;
        for (const page_id page : found.pages) {
            const std::size_t rows = std::min<std::size_t>(left, shape_.tokens);
            known->table.push_back({.page = page, .count = static_cast<std::uint32_t>(rows)});
            left -= rows;
        }
        const std::size_t kept = sequences_.exact().kept(*known, found.tokens);
        known->tokens.resize(kept);
        known->table.resize(known->cut(kept));
        const auto pages = std::span(found.pages).first(known->table.size());
        books_.tell({event_kind::matched, kept, tokens.size(), pages.size(), pages});
        return {adopt(std::move(known)), tokens.size(), found};
    }

    /// Which of the matched prompt's tokens run.
    [[nodiscard]] rerun plan(const match_type& found) const {
        std::size_t first = recompute_.first_rerun(found.tokens(), found.of());
        if constexpr (page_writer<codec_type>) {
            const std::lock_guard guard(lock_);
            first = sequences_.exact().kept(*found.known_.state_, first);
        }
        return {first, found.of() - first};
    }

    /// An empty sequence.
    [[nodiscard]] sequence open() { return open_as(0); }

    /// A sequence of the reused tokens of a match.
    [[nodiscard]] sequence open(match_type found, const rerun& plan) {
        found.known_.truncate(plan.first);
        return std::move(found.known_);
    }

    /// Room for `rows` rows behind a sequence, and the memory to commit them. Evicts idle pages where none is free.
    /// Errors: out_of_memory, with the pages needed and had; the sequence and all that others hold is as before.
    [[nodiscard]] result<lease> reserve(sequence& to, std::size_t rows) { return reserve(to, rows, rows); }

    /// The same for rows that are written and attended at most `at_once` at a time, in ascending order: where the codec
    /// codes whole pages, no more of them need their exact rows.
    [[nodiscard]] result<lease> reserve(sequence& to, std::size_t rows, std::size_t at_once) {
        const std::lock_guard guard(lock_);
        sequence_state& state = *to.state_;
        expects(!state.has_lease, "a sequence has one lease at a time");
        const auto open_rows = state.open_rows(shape_.tokens);
        const std::uint32_t used = open_rows.value_or(shape_.tokens);
        const bool copies = open_rows && rows > 0 && !books_.writable(state.table.back().page, used);
        const std::size_t in_tail = std::min<std::size_t>(rows, shape_.tokens - used);
        const std::size_t behind = rows - in_tail;
        const std::size_t fresh = behind / shape_.tokens + (behind % shape_.tokens > 0 ? 1 : 0);
        at_once = std::min(std::max<std::size_t>(at_once, 1), rows);
        const std::size_t exact = sequences_.exact().needed(copies, state.table.size(), fresh, at_once);
        const std::size_t needed = fresh + (copies ? 1 : 0) + books_.exact().more_aside(exact);
        if (needed > books_.room(state.tenant))
            return refuse(state, rows, needed);

        state.prepare(fresh, rows);
        state.pages_before = state.table.size();
        state.tail_before = open_rows ? std::optional(state.table.back()) : std::nullopt;
        state.leased = rows;
        state.has_lease = true;
        state.leased_at = std::chrono::steady_clock::now();
        try {
            if (take_rows(state, in_tail, behind, copies ? used : 0) && sequences_.exact().open(state, used, at_once))
                return lease(*this, state);
        } catch (...) {
            sequences_.undo(state);
            throw;
        }
        sequences_.undo(state);
        return refuse(state, rows, needed);
    }

    [[nodiscard]] const page_shape& shape() const noexcept { return shape_; }
    [[nodiscard]] const identity& id() const noexcept { return identity_; }
    [[nodiscard]] const codec_type& codec() const noexcept { return codec_; }
    [[nodiscard]] const storage_type& storage() const noexcept { return books_.pool().storage(); }
    [[nodiscard]] const auto& observer() const noexcept { return books_.observer(); }

    /// Calls `ask` with the observer, while nothing happens that it could be told of.
    template <class Ask>
    void ask_observer(Ask&& ask) const {
        const std::lock_guard guard(lock_);
        ask(books_.observer());
    }

    [[nodiscard]] cache_stats stats() const {
        const std::lock_guard guard(lock_);
        const auto& pool = books_.pool();
        const std::size_t free = pool.free().size(), idle = books_.idle();
        return {pool.pages(),
                free,
                pool.pages() - free - idle,
                idle,
                codec_.page_bytes(),
                sequences_.size(),
                books_.exact().alive(),
                books_.exact().bytes()};
    }

    /// A paragraph for people: shape, codec, how full, identity.
    [[nodiscard]] std::string describe() const {
        const cache_stats now = stats();
        const auto number = [](std::size_t n) { return std::to_string(n); };
        return "kvcache: " + number(shape_.layers) + " layers, " + number(shape_.kv_heads) + " KV heads of " +
               number(shape_.head_dim) + ", pages of " + number(shape_.tokens) + " tokens and " +
               number(now.page_bytes) + " bytes (" + codec_.name() + "); " + number(now.pages) +
               " pages: " + number(now.held) + " held by " + number(now.sequences) + " sequences, " + number(now.idle) +
               " idle, " + number(now.free) + " free; identity " + to_string(digest_of(identity_));
    }

    /// Proves the books: every page is free, held or idle, every holder is counted, every run is what its holders say.
    /// Cost: O(pages + tokens). For tests and for suspicion.
    [[nodiscard]] result<void> check() const {
        const std::lock_guard guard(lock_);
        return sequences_.check();
    }

    // For tenants.

    std::uint32_t add_tenant(const std::string& salt, std::size_t quota) {
        const std::lock_guard guard(lock_);
        identity own = identity_;
        own.tenant = salt;
        return books_.add_tenant(hash_.open(own).root(), quota);
    }

    void set_quota(std::uint32_t tenant, std::size_t quota) {
        const std::lock_guard guard(lock_);
        books_.set_quota(tenant, quota);
    }

    [[nodiscard]] tenant_usage usage(std::uint32_t tenant) const {
        const std::lock_guard guard(lock_);
        return books_.tenants().usage(tenant);
    }

    [[nodiscard]] sequence open_as(std::uint32_t tenant) {
        const std::lock_guard guard(lock_);
        auto state = std::make_unique<sequence_state>();
        state->tenant = tenant;
        return adopt(std::move(state));
    }

    // For sequences and leases.

    void release(sequence_state& state) noexcept {
        const std::lock_guard guard(lock_);
        sequences_.leave(state);
    }

    [[nodiscard]] sequence fork(const sequence_state& from, std::size_t tokens) {
        expects(tokens <= from.tokens.size() && !from.has_lease, "a fork lies inside a sequence without a lease");
        const std::lock_guard guard(lock_);
        tokens = sequences_.exact().kept(from, tokens);
        auto copy = std::make_unique<sequence_state>();
        copy->tokens.assign(from.tokens.begin(), from.tokens.begin() + static_cast<std::ptrdiff_t>(tokens));
        copy->table = from.table;
        copy->table.resize(copy->cut(tokens));
        copy->sealed = std::min(from.sealed, copy->full_entries(shape_.tokens));
        copy->tenant = from.tenant;
        copy->shares = from.shares;
        return adopt(std::move(copy));
    }

    void truncate(sequence_state& state, std::size_t tokens) {
        expects(tokens <= state.tokens.size() && !state.has_lease,
                "a truncation lies inside a sequence without a lease");
        const std::lock_guard guard(lock_);
        sequences_.truncate(state, sequences_.exact().kept(state, tokens));
    }

    void commit(sequence_state& state, std::span<const token_id> tokens) {
        const std::lock_guard guard(lock_);
        sequences_.commit(state, tokens);
        books_.tell({event_kind::stored, tokens.size(), 0, 0});
    }

    void rollback(sequence_state& state) noexcept {
        const std::lock_guard guard(lock_);
        sequences_.undo(state);
    }

    [[nodiscard]] std::span<std::byte> bytes(page_id page) const { return books_.pool().bytes(page); }

private:
    using books = page_books<storage_type, decltype(std::declval<const Hash&>().open(identity{})),
                             decltype(std::declval<const Index&>().open(page_shape{}, 0)),
                             decltype(std::declval<const Eviction&>().open(eviction_room{})),
                             decltype(std::declval<const Observer&>().open())>;

    [[nodiscard]] static const page_shape& checked(const page_shape& shape) {
        expects(shape.valid(), "a page shape has no zero extent, and tokens is a multiple of 16");
        return shape;
    }

    // What stays exact, where the codec codes whole pages.
    [[nodiscard]] std::optional<exact_pages> coded() const {
        if constexpr (page_writer<codec_type>)
            return codec_.exact();
        else
            return std::nullopt;
    }

    [[nodiscard]] std::size_t pages_in(budget limit) const {
        return std::min<std::size_t>(limit.bytes / codec_.page_bytes(), std::size_t{1} << 31);
    }

    [[nodiscard]] identity complete(identity id) const {
        id.codec = codec_.name();
        id.layout = "key tiles of 16, value rows";
        id.page_tokens = shape_.tokens;
        return id;
    }

    [[nodiscard]] sequence adopt(std::unique_ptr<sequence_state> state) noexcept {
        sequences_.enter(*state);
        return {*this, std::move(state)};
    }

    // Gives the table `in_tail` rows of the last page, copied if its first `copied` rows are not to be written over,
    // and `behind` rows of new pages. False if the storage refuses.
    [[nodiscard]] bool take_rows(sequence_state& state, std::size_t in_tail, std::size_t behind, std::size_t copied) {
        if (copied > 0) {
            const auto own = books_.allocate(state.tenant);
            if (!own)
                return false;
            const page_id shared = std::exchange(state.table.back().page, *own);
            if constexpr (row_writer<codec_type>)
                codec_.copy(bytes(shared), bytes(*own), copied);
            const page_id pair[] = {shared, *own};
            books_.tell({event_kind::copied, copied, 0, 1, pair});
        }
        if (in_tail > 0)
            state.table.back().count += static_cast<std::uint32_t>(in_tail);
        while (behind > 0) {
            const auto page = books_.allocate(state.tenant);
            if (!page)
                return false;
            const std::size_t count = std::min<std::size_t>(behind, shape_.tokens);
            state.table.push_back({.page = *page, .count = static_cast<std::uint32_t>(count)});
            behind -= count;
        }
        return true;
    }

    [[nodiscard]] error refuse(const sequence_state& state, std::size_t rows, std::size_t pages) {
        books_.tell({event_kind::refused, 0, rows, pages});
        const bool over_quota = books_.room(state.tenant) < books_.available();
        const std::size_t all = over_quota ? books_.tenants().usage(state.tenant).quota : books_.pool().pages();
        return {error_code::out_of_memory, over_quota ? "quota" : "pages",
                std::to_string(rows) + " tokens need " + std::to_string(pages) + " pages of " +
                    std::to_string(codec_.page_bytes()) + " bytes; " + std::to_string(books_.room(state.tenant)) +
                    " of " + std::to_string(all) + " can be had"};
    }

    page_shape shape_;
    codec_type codec_;
    identity identity_;
    books books_;
    Hash hash_;
    sequence_books<books> sequences_;
    decltype(std::declval<const Recompute&>().open(page_shape{})) recompute_;
    mutable typename Locking::state lock_;
};

} // namespace kvcache
