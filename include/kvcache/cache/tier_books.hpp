// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/page_parts.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/core/page_table.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/record/record.hpp>
#include <kvcache/record/record_writer.hpp>
#include <kvcache/tier/concept.hpp>
#include <kvcache/tier/run.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache {

/// What a cache has asked of its tier and got.
struct tier_stats {
    std::uint64_t asked = 0;         ///< Prompts with whole pages that memory did not have.
    std::uint64_t hits = 0;          ///< Of those, prompts of which the tier had some.
    std::uint64_t loaded_tokens = 0; ///< Checked and published.
    std::uint64_t refused = 0;       ///< Records that were damaged or not what was asked for; they are erased.
    std::uint64_t failed = 0;        ///< Reads and writes that the tier refused.
    std::uint64_t no_room = 0;       ///< Prompts whose records found no pages.
    std::uint64_t slower = 0;        ///< Prompts of which the tier had some that are quicker computed.
    std::uint64_t handed_over = 0;   ///< Records.
    std::optional<error> last = {};  ///< Why the last one was refused or failed.
};

/// What a cache does with its tier: after a commit full pages are handed over; where memory knows no more of a prompt,
/// records are put in place through a lease, checked there, and committed. What fails is counted, and is a miss.
template <tier_state Tier>
class tier_books {
public:
    tier_books(Tier tier, const identity& id, const std::string& secret)
        : tier_(std::move(tier)), secret_(secret), seal_(secret) {
        set(0, id);
    }

    [[nodiscard]] Tier& tier() noexcept { return tier_; }
    [[nodiscard]] const Tier& tier() const noexcept { return tier_; }

    /// Says the identity of a tenant; of the cache itself for 0. Throws: bad_alloc.
    void set(std::size_t tenant, const identity& id) {
        auto names = std::make_unique<record_names>(id, secret_);
        const std::lock_guard guard(lock_);
        names_.resize(std::max(names_.size(), tenant + 1));
        names_[tenant] = std::move(names);
    }

    [[nodiscard]] tier_stats stats() const {
        const std::lock_guard guard(lock_);
        return stats_;
    }

    /// Puts what the tier has of `tokens` behind a sequence that begins them and ends with a page. Whole pages only.
    /// Returns how many pages.
    template <class Cache>
    [[nodiscard]] std::size_t load(Cache& cache, typename Cache::sequence& behind, std::uint32_t tenant,
                                   std::span<const token_id> tokens) {
        const std::size_t page_tokens = cache.shape().tokens;
        const std::size_t first = behind.size() / page_tokens, most = tokens.size() / page_tokens;
        if (first >= most)
            return 0;
        note([](tier_stats& s) { ++s.asked; });
        try {
            const record_names& names = names_of(tenant);
            std::vector<digest256> chain = {names.root()}; // by page: what comes before it
            for (std::size_t page = 0; page < most; ++page)
                chain.push_back(names.chain(chain.back(), tokens.subspan(page * page_tokens, page_tokens)));
            const auto wanted = std::span<const digest256>(chain).subspan(first + 1);
            std::size_t pages = leading_in(tier_, wanted);
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
                const std::size_t placed = place(*lease, cache, names, chain, first, run);
                if (placed < pages) {
                    pages = placed; // what a shorter run keeps exactly differs, so it is put in place anew
                    continue;
                }
                lease->commit_in_place(run);
                const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
                if constexpr (requires { tier_.took(pages, took.count()); })
                    tier_.took(pages, took.count());
                note([&](tier_stats& s) { ++s.hits, s.loaded_tokens += run.size(); });
                return pages;
            }
        } catch (const std::bad_alloc&) {
            note([](tier_stats& s) { ++s.failed; });
        }
        return 0;
    }

    /// Hands over the pages [first, last) of a sequence, which are full and exact, if the tier has them not. `name` is
    /// that of all before `first`. Returns how many leading pages it is the name of then: `last`, or fewer without
    /// memory.
    template <class Cache>
    [[nodiscard]] std::size_t store(const Cache& cache, std::uint32_t tenant, std::span<const page_entry> table,
                                    std::span<const token_id> tokens, std::size_t first, std::size_t last,
                                    digest256& name) noexcept {
        const record_names& names = names_of(tenant);
        const std::size_t page_tokens = cache.shape().tokens;
        try {
            for (; first < last; ++first) {
                const auto run = tokens.subspan(first * page_tokens, page_tokens);
                const digest256 before = first == 0 ? names.root() : name, own = names.chain(before, run);
                if (!tier_.contains(own))
                    hand_over(cache, table[first], first, tokens.size(), run, before, own, names);
                name = own;
            }
        } catch (const std::bad_alloc&) {
            note([](tier_stats& s) { ++s.failed; });
        }
        return first;
    }

private:
    [[nodiscard]] const record_names& names_of(std::uint32_t tenant) const {
        const std::lock_guard guard(lock_);
        return *names_[tenant];
    }

    template <class Change>
    void note(Change change) {
        const std::lock_guard guard(lock_);
        change(stats_);
    }
    void fail(error why) {
        note([&](tier_stats& s) { ++s.failed, s.last = std::move(why); });
    }

    template <class Cache>
    void hand_over(const Cache& cache, const page_entry& entry, std::size_t page, std::size_t end,
                   std::span<const token_id> run, const digest256& before, const digest256& name,
                   const record_names& names) {
        page_parts<Cache> parts(cache);
        parts.add(entry, page, end, 0);
        const record_writer made({record_kind::page, page * run.size(), run, before, name, parts.parts()}, names,
                                 seal_);
        const auto taken = tier_.put({.name = name,
                                      .cost = cache.prefill_seconds(page * run.size(), run.size()),
                                      .depth = static_cast<std::uint32_t>(page)},
                                     made.pieces());
        if (!taken)
            fail(taken.error());
        else
            note([](tier_stats& s) { ++s.handed_over; });
    }

    // Whether reading so many pages is said to be quicker than computing them.
    [[nodiscard]] bool worth_loading(std::size_t pages, double prefill_seconds) {
        if constexpr (requires { tier_.worth(pages, prefill_seconds); })
            return tier_.worth(pages, prefill_seconds);
        else
            return true;
    }

    // Puts the pages of a run in place, from page `first` on. Returns how many: fewer, and it is counted why, if the
    // tier has no sound record of the next.
    template <class Lease, class Cache>
    [[nodiscard]] std::size_t place(const Lease& lease, const Cache& cache, const record_names& names,
                                    std::span<const digest256> chain, std::size_t first,
                                    std::span<const token_id> run) {
        const std::size_t page_tokens = cache.shape().tokens, pages = run.size() / page_tokens;
        std::size_t placed = 0;
        result<void> sound;
        const auto read =
            read_run(tier_, chain.subspan(first + 1, pages), [&](std::size_t at, std::span<const std::byte> bytes) {
                const std::size_t page = first + at;
                sound = put_in_place<typename Cache::codec_type>(lease, names, bytes, chain[page], chain[page + 1],
                                                                 page * page_tokens, at,
                                                                 run.subspan(at * page_tokens, page_tokens));
                placed += sound.has_value();
                return sound.has_value();
            });
        if (!read)
            fail(read.error());
        if (!sound) {
            note([&](tier_stats& s) { ++s.refused, s.last = sound.error(); });
            if (auto erased = tier_.erase(chain[first + placed + 1]); !erased)
                fail(erased.error());
        }
        return placed;
    }

    template <class Codec, class Lease>
    [[nodiscard]] result<void> put_in_place(const Lease& lease, const record_names& names,
                                            std::span<const std::byte> bytes, const digest256& before,
                                            const digest256& name, std::uint64_t first, std::size_t at,
                                            std::span<const token_id> run) const {
        const auto read = record::parse(bytes, seal_);
        if (!read)
            return read.error();
        if (auto own = read->made_under(names); !own)
            return own;
        const struct {
            const char* field;
            bool holds;
        } facts[] = {{"kind", read->kind() == record_kind::page},
                     {"name", read->name() == name},
                     {"before", read->before() == before},
                     {"first_token", read->first() == first},
                     {"tokens", std::ranges::equal(read->tokens(), run)}};
        for (const auto& [field, holds] : facts)
            if (!holds)
                return error{error_code::mismatched, field,
                             std::string(field) + ": the record is not the one that was asked for"};
        return place_page<Codec>(*read, 0, lease, at, static_cast<std::uint32_t>(run.size()), seal_);
    }

    Tier tier_;
    std::string secret_;
    record_seal seal_;
    mutable std::mutex lock_;                          // of what follows
    std::vector<std::unique_ptr<record_names>> names_; // by tenant
    tier_stats stats_;
};

} // namespace kvcache
