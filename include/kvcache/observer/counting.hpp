// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/observer/concept.hpp>

#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI { namespace observer {

/// Event totals over the lifetime of a cache.
struct event_counts {
    std::uint64_t lookups = 0;
    std::uint64_t tokens_looked_up = 0;
    std::uint64_t tokens_found = 0;
    std::uint64_t tokens_stored = 0;
    std::uint64_t pages_published = 0;
    std::uint64_t pages_copied = 0;
    std::uint64_t pages_evicted = 0;
    std::uint64_t refusals = 0;
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
                counts_.tokens_looked_up += what.of;
                counts_.tokens_found += what.tokens;
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

    private:
        event_counts counts_;
    };

    [[nodiscard]] state open() const { return {}; }
};

static_assert(observer_policy<counting>);

}}} // namespace kvcache::observer
