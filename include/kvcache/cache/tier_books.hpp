// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/no_tier_books.hpp>
#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/cache/tier_records.hpp>
#include <kvcache/cache/tier_stats.hpp>
#include <kvcache/core/digest256.hpp>
#include <kvcache/core/exceptions.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/tier/concept.hpp>
#include <kvcache/tier/run.hpp>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// What a cache does with its tier: after a commit full pages are handed over; where memory knows no more of a prompt,
/// records are put in place through a lease, checked there, and committed. What fails is counted, and is a miss. Of a
/// tier that holds nothing, nothing is asked.
template <tier_state Tier>
class tier_books {
public:
    tier_books(Tier tier, const identity& id, const std::string& secret) : records_(std::move(tier), id, secret) {}

    [[nodiscard]] Tier& tier() noexcept { return records_.tier(); }
    [[nodiscard]] const Tier& tier() const noexcept { return records_.tier(); }

    /// Says the identity of a tenant; of the cache itself for 0. Throws: bad_alloc.
    void set(std::size_t tenant, const identity& id) { records_.set(tenant, id); }

    [[nodiscard]] tier_stats stats() const {
        const std::lock_guard guard(lock_);
        return stats_;
    }

    /// What the cache knows of a prompt, once the tier has been asked for the pages that memory has not.
    template <class Cache>
    [[nodiscard]] auto match(Cache& cache, std::uint32_t tenant, std::span<const token_id> tokens) {
        if (holds_nothing(tier()))
            return cache.look_up(tenant, tokens, true, 0);
        auto known = cache.look_up(tenant, tokens, false, 0);
        if (complete(cache, known.tokens(), tokens.size()))
            return cache.tell_of(std::move(known));
        const std::size_t loaded = load_behind(cache, std::move(known), tenant, tokens);
        return cache.look_up(tenant, tokens, true, loaded);
    }

    /// Whether match would ask the tier for more of a prompt than memory knows.
    template <class Cache>
    [[nodiscard]] bool may_know(Cache& cache, std::uint32_t tenant, std::span<const token_id> tokens) {
        return !holds_nothing(tier()) &&
               !complete(cache, cache.look_up(tenant, tokens, false, 0).tokens(), tokens.size());
    }

    /// Loads what the tier has of a prompt behind what memory knows. Returns how many tokens; nobody holds them then.
    template <class Cache>
    std::size_t prefetch(Cache& cache, std::uint32_t tenant, std::span<const token_id> tokens) {
        return holds_nothing(tier()) ? 0 : load_behind(cache, cache.look_up(tenant, tokens, false, 0), tenant, tokens);
    }

    /// Hands over the pages that a sequence has made known since, which are full and exact, if the tier has them not.
    /// Without memory, those that are left wait for another time.
    template <class Cache>
    void store(const Cache& cache, sequence_state& state) noexcept {
        if (state.stored < state.sealed && !holds_nothing(tier()))
            hand_over(cache, state);
    }

private:
    template <class Cache>
    void hand_over(const Cache& cache, sequence_state& state) noexcept {
        const record_names& names = records_.names_of(state.tenant);
        const std::size_t page_tokens = cache.shape().tokens;
        const bool done = detail::completes<std::bad_alloc>([&] {
            for (; state.stored < state.sealed; ++state.stored) {
                const std::size_t page = state.stored;
                const auto run = std::span<const token_id>(state.tokens).subspan(page * page_tokens, page_tokens);
                const digest256 before = page == 0 ? names.root() : state.stored_name, own = names.chain(before, run);
                if (!tier().contains(own)) {
                    const auto taken = records_.hand_over(cache, state.table[page], page, state.tokens.size(), run,
                                                          before, own, names);
                    if (!taken)
                        fail(taken.error());
                    else
                        note([](tier_stats& s) { ++s.handed_over; });
                }
                state.stored_name = own;
            }
        });
        if (!done)
            note([](tier_stats& s) { ++s.failed; });
    }

    template <class Change>
    void note(Change change) {
        const std::lock_guard guard(lock_);
        change(stats_);
    }
    void fail(error why) {
        note([&](tier_stats& s) { ++s.failed, s.last = std::move(why); });
    }

    // Whether memory knows all whole pages of a prompt.
    template <class Cache>
    [[nodiscard]] static bool complete(const Cache& cache, std::size_t known, std::size_t tokens) {
        return known / cache.shape().tokens == tokens / cache.shape().tokens;
    }

    template <class Cache>
    [[nodiscard]] std::size_t load_behind(Cache& cache, typename Cache::match_type known, std::uint32_t tenant,
                                          std::span<const token_id> tokens) {
        const std::size_t page_tokens = cache.shape().tokens;
        const std::size_t whole = known.tokens() / page_tokens * page_tokens;
        auto behind = cache.open(std::move(known), {whole, 0});
        return load(cache, behind, tenant, tokens) * page_tokens;
    }

    // Puts what the tier has of `tokens` behind a sequence that begins them and ends with a page. Whole pages only.
    // Returns how many pages.
    template <class Cache>
    [[nodiscard]] std::size_t load(Cache& cache, typename Cache::sequence& behind, std::uint32_t tenant,
                                   std::span<const token_id> tokens) {
        const std::size_t page_tokens = cache.shape().tokens;
        const std::size_t first = behind.size() / page_tokens, most = tokens.size() / page_tokens;
        if (first >= most)
            return 0;
        note([](tier_stats& s) { ++s.asked; });
        std::size_t loaded = 0;
        if (!detail::completes<std::bad_alloc>([&] { loaded = load_run(cache, behind, tenant, tokens, first, most); }))
            note([](tier_stats& s) { ++s.failed; });
        return loaded;
    }

    // The same of pages [first, most).
    template <class Cache>
    [[nodiscard]] std::size_t load_run(Cache& cache, typename Cache::sequence& behind, std::uint32_t tenant,
                                       std::span<const token_id> tokens, std::size_t first, std::size_t most) {
        const std::size_t page_tokens = cache.shape().tokens;
        const record_names& names = records_.names_of(tenant);
        std::vector<digest256> chain = {names.root()}; // by page: what comes before it
        for (std::size_t page = 0; page < most; ++page)
            chain.push_back(names.chain(chain.back(), tokens.subspan(page * page_tokens, page_tokens)));
        std::size_t pages = leading_in(tier(), std::span<const digest256>(chain).subspan(first + 1));
        if (pages > 0 && !worth_loading(pages, cache.prefill_seconds(first * page_tokens, pages * page_tokens))) {
            note([](tier_stats& s) { ++s.slower; });
            return 0;
        }
        while (pages > 0) {
            const auto run = tokens.subspan(first * page_tokens, pages * page_tokens);
            const auto began = std::chrono::steady_clock::now();
            auto lease = cache.reserve(behind, run.size(), 1);
            if (!lease) {
                note([](tier_stats& s) { ++s.no_room; });
                pages /= 2;
                continue;
            }
            const std::size_t placed = settle(records_.place(*lease, cache, names, chain, first, run), chain, first);
            if (placed < pages) {
                pages = placed; // what a shorter run keeps exactly differs, so it is put in place anew
                continue;
            }
            lease->commit_in_place(run);
            const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
            if constexpr (requires { tier().took(pages, took.count()); })
                tier().took(pages, took.count());
            note([&](tier_stats& s) { ++s.hits, s.loaded_tokens += run.size(); });
            return pages;
        }
        return 0;
    }

    // Counts what was refused or failed, and erases what was refused. Returns how many leading pages are in place.
    [[nodiscard]] std::size_t settle(std::span<const placed_part> parts, std::span<const digest256> chain,
                                     std::size_t first) {
        std::size_t leading = 0;
        for (const placed_part& part : parts) {
            if (leading == part.first)
                leading += part.placed;
            if (!part.read)
                fail(part.read.error());
            if (part.sound)
                continue;
            note([&](tier_stats& s) { ++s.refused, s.last = part.sound.error(); });
            if (auto erased = tier().erase(chain[first + part.first + part.placed + 1]); !erased)
                fail(erased.error());
        }
        return leading;
    }

    // Whether reading so many pages is said to be quicker than computing them.
    [[nodiscard]] bool worth_loading(std::size_t pages, double prefill_seconds) {
        if constexpr (requires { tier().worth(pages, prefill_seconds); })
            return tier().worth(pages, prefill_seconds);
        else
            return true;
    }

    tier_records<Tier> records_;
    mutable std::mutex lock_; // of what follows
    tier_stats stats_;
};

} // namespace kvcache
