// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/tier/concept.hpp>

namespace kvcache::inline KVCACHE_ABI {

/// No tier: what leaves memory is gone.
struct no_tier {
    using role = tier_role;
    class state;
    [[nodiscard]] state open() const;
};

class no_tier::state {
public:
    template <class Use>
    [[nodiscard]] result<bool> read(const digest256&, Use&&) {
        return false;
    }
    [[nodiscard]] result<void> put(const tier_entry&, std::span<const std::span<const std::byte>>) { return {}; }
    [[nodiscard]] bool contains(const digest256&) const noexcept { return false; }
    [[nodiscard]] result<void> erase(const digest256&) { return {}; }
    [[nodiscard]] result<void> flush() { return {}; }
    [[nodiscard]] result<void> status() const { return {}; }
    [[nodiscard]] tier_counts counts() const noexcept { return {}; }
    [[nodiscard]] bool holds_nothing() const noexcept { return true; }
};

inline no_tier::state no_tier::open() const {
    return {};
}

static_assert(tier_policy<no_tier>);

} // namespace kvcache
