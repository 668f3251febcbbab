// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/cache_access.hpp>
#include <kvcache/cache/no_tier_client.hpp>
#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/cache/tier_records.hpp>
#include <kvcache/cache/tier_stats.hpp>
#include <kvcache/core/exceptions.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/core/movable_mutex.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/core/sha256_digest.hpp>
#include <kvcache/tier/concept.hpp>
#include <kvcache/tier/run.hpp>

#include <algorithm>
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

namespace kvcache { inline namespace KVCACHE_ABI {

/// The tier operations of a cache. After a commit, full pages are handed over. If a prompt is not wholly in memory,
/// records are copied into a lease, verified there and committed. A failure is counted, and is a miss. A refused record
/// is erased with those after it in its prompt, which may have the same fault; the prompt's pages are computed then,
/// and handed over anew. A null tier is never called.
template <tier_state Tier>
class tier_client {
public:
    tier_client(Tier tier, const identity& id, const std::string& secret) : records_(std::move(tier), id, secret) {}

    [[nodiscard]] Tier& tier() noexcept { return records_.tier(); }
    [[nodiscard]] const Tier& tier() const noexcept { return records_.tier(); }

    /// Sets the identity of a tenant; of the cache itself for 0. Throws: bad_alloc.
    void set(std::size_t tenant, const identity& id) { records_.set(tenant, id); }

    [[nodiscard]] tier_stats stats() const {
        const tier_counts tier = records_.tier().counts();
        const std::lock_guard guard(lock_);
        tier_stats now = stats_;
        now.stored = tier.written;
        now.store_failures = tier.failures;
        return now;
    }

    /// The cached prefix of a prompt, after loading from the tier the pages that are not in memory.
    template <class Cache>
    [[nodiscard]] auto match(Cache& cache, std::uint32_t tenant, std::span<const token_id> tokens) {
        if (is_null(tier()))
            return cache_access::match_resident(cache, tenant, tokens, true, 0);
        auto known = cache_access::match_resident(cache, tenant, tokens, false, 0);
        if (complete(cache, known.tokens(), tokens.size()))
            return cache_access::emit_match(cache, std::move(known));
        const std::size_t loaded = load_behind(cache, std::move(known), tenant, tokens);
        return cache_access::match_resident(cache, tenant, tokens, true, loaded);
    }

    /// Returns whether match would read the tier for more of a prompt than is in memory.
    template <class Cache>
    [[nodiscard]] bool may_know(Cache& cache, std::uint32_t tenant, std::span<const token_id> tokens) {
        return !is_null(tier()) &&
               !complete(cache, cache_access::match_resident(cache, tenant, tokens, false, 0).tokens(), tokens.size());
    }

    /// Loads the part of a prompt that the tier has and memory lacks. Returns the number of tokens, whose pages are
    /// then idle.
    template <class Cache>
    std::size_t prefetch(Cache& cache, std::uint32_t tenant, std::span<const token_id> tokens) {
        return is_null(tier())
                   ? 0
                   : load_behind(cache, cache_access::match_resident(cache, tenant, tokens, false, 0), tenant, tokens);
    }

    /// Hands over the pages that a sequence has published since the last call, which are full and exact, unless the
    /// tier has them. If memory runs out, the rest waits for a later call.
    template <class Cache>
    void store(const Cache& cache, sequence_state& state) noexcept {
        if (state.offloaded.pages < state.published_pages && !is_null(tier()))
            hand_over(cache, state);
    }

private:
    template <class Cache>
    void hand_over(const Cache& cache, sequence_state& state) noexcept {
        const record_names& names = records_.names_of(state.tenant);
        const std::size_t page_tokens = cache.shape().tokens;
        const bool done = detail::completes<std::bad_alloc>([&] {
            for (; state.offloaded.pages < state.published_pages; ++state.offloaded.pages) {
                prompt_page page{.index = state.offloaded.pages};
                page.tokens = std::span<const token_id>(state.tokens).subspan(page.index * page_tokens, page_tokens);
                page.before = page.index == 0 ? names.root() : state.offloaded.record;
                page.name = names.chain(page.before, page.tokens);
                if (!tier().contains(page.name)) {
                    const auto taken =
                        records_.hand_over(cache, state.table[page.index], state.tokens.size(), page, names);
                    if (!taken)
                        fail(taken.error());
                    else
                        note([](tier_stats& s) { ++s.handed_over; });
                }
                state.offloaded.record = page.name;
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

    // Whether all whole pages of a prompt are in memory.
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

    // Appends the pages of `tokens` that the tier has to a sequence that is a prefix of them and ends at a page
    // boundary. Whole pages only. Returns the number of pages.
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

    // The same for pages [first, most).
    template <class Cache>
    [[nodiscard]] std::size_t load_run(Cache& cache, typename Cache::sequence& behind, std::uint32_t tenant,
                                       std::span<const token_id> tokens, std::size_t first, std::size_t most) {
        const std::size_t page_tokens = cache.shape().tokens;
        const record_names& names = records_.names_of(tenant);
        std::vector<sha256_digest> chain = {names.root()}; // by page: the name of the prefix before it
        for (std::size_t page = 0; page < most; ++page)
            chain.push_back(names.chain(chain.back(), tokens.subspan(page * page_tokens, page_tokens)));
        std::size_t pages = tier::count_prefix_hits(tier(), std::span<const sha256_digest>(chain).subspan(first + 1));
        if (pages > 0 &&
            !worth_loading(pages, cache_access::prefill_seconds(cache, first * page_tokens, pages * page_tokens))) {
            note([](tier_stats& s) { ++s.slower; });
            return 0;
        }
        while (pages > 0) {
            const auto run = tokens.subspan(first * page_tokens, pages * page_tokens);
            const auto began = std::chrono::steady_clock::now();
            auto lease = cache.reserve(behind, run.size(), {.at_once = 1});
            if (!lease) {
                note([](tier_stats& s) { ++s.no_room; });
                pages /= 2;
                continue;
            }
            const std::size_t placed =
                record_results(records_.place(*lease, cache, names, {first, page_tokens, run, chain}),
                               std::span<const sha256_digest>(chain).subspan(first + 1, pages));
            if (placed < pages) {
                pages = placed; // the residual rows of a shorter run differ, so it is read again
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

    // Counts refused and failed records, and erases the first refused one and those after it. `names` are the records
    // of the run. Returns the number of leading pages that are in place.
    [[nodiscard]] std::size_t record_results(std::span<const placed_part> parts, std::span<const sha256_digest> names) {
        std::size_t leading = 0, bad = names.size();
        for (const placed_part& part : parts) {
            if (leading == part.first)
                leading += part.placed;
            if (!part.read)
                fail(part.read.error());
            if (part.sound)
                continue;
            note([&](tier_stats& s) { ++s.refused, s.last = part.sound.error(); });
            bad = std::min(bad, part.first + part.placed);
        }
        for (const sha256_digest& name : names.subspan(bad))
            if (auto erased = tier().erase(name); !erased)
                fail(erased.error());
        return leading;
    }

    // Whether the tier estimates that reading `pages` pages is faster than computing them.
    [[nodiscard]] bool worth_loading(std::size_t pages, double prefill_seconds) {
        if constexpr (requires { tier().worth(pages, prefill_seconds); })
            return tier().worth(pages, prefill_seconds);
        else
            return true;
    }

    tier_records<Tier> records_;
    mutable movable_mutex lock_; // guards stats_
    tier_stats stats_;
};

}} // namespace kvcache
