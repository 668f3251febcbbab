// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/observer/concept.hpp>

#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI { namespace observer {

/// Event totals of a cache, since it was opened or its statistics were reset.
struct event_counts {
    std::uint64_t lookups = 0;
    std::uint64_t hits = 0;             ///< Lookups that found a prefix, which is exact; the others are misses.
    std::uint64_t approximate_hits = 0; ///< Prompts into which chunks were placed that were computed elsewhere.
    std::uint64_t tokens_looked_up = 0;
    std::uint64_t tokens_found = 0;
    std::uint64_t tokens_spliced = 0; ///< Tokens of these chunks that were kept.
    std::uint64_t tokens_stored = 0;
    std::uint64_t pages_published = 0;
    std::uint64_t pages_copied = 0;
    std::uint64_t pages_evicted = 0;
    std::uint64_t refusals = 0; ///< Reservations that failed for want of pages.

    [[nodiscard]] std::uint64_t misses() const noexcept { return lookups - hits; }
};

/// Counts events. Cost: one to three additions per event.
struct counting {
    using role = observer_role;

    class state {
    public:
        void on(const event& what) noexcept {
            switch (what.kind) {
            case event_kind::matched:
                ++counts_.lookups;
                counts_.hits += what.tokens > 0;
                counts_.tokens_looked_up += what.of;
                counts_.tokens_found += what.tokens;
                break;
            case event_kind::spliced:
                ++counts_.approximate_hits;
                counts_.tokens_spliced += what.tokens;
                break;
            case event_kind::stored:
                counts_.tokens_stored += what.tokens;
                break;
            case event_kind::published:
                counts_.pages_published += what.pages;
                break;
            case event_kind::copied:
                counts_.pages_copied += what.pages;
                break;
            case event_kind::evicted:
                counts_.pages_evicted += what.pages;
                break;
            case event_kind::refused:
                ++counts_.refusals;
                break;
            }
        }

        [[nodiscard]] const event_counts& counts() const noexcept { return counts_; }
        void reset() noexcept { counts_ = {}; }

    private:
        event_counts counts_;
    };

    [[nodiscard]] state open() const { return {}; }
};

static_assert(observer_policy<counting>);

}}} // namespace kvcache::observer
