// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/tier/concept.hpp>

namespace kvcache { inline namespace KVCACHE_ABI { namespace tier {

/// No tier: pages evicted from memory are lost.
struct none {
    using role = tier_role;

    class state {
    public:
        template <class Use>
        [[nodiscard]] result<bool> read(const sha256_digest&, Use&&) {
            return false;
        }
        [[nodiscard]] result<void> put(const tier_entry&, std::span<const std::span<const std::byte>>) { return {}; }
        [[nodiscard]] bool contains(const sha256_digest&) const noexcept { return false; }
        [[nodiscard]] result<void> erase(const sha256_digest&) { return {}; }
        [[nodiscard]] result<void> flush() { return {}; }
        [[nodiscard]] result<void> status() const { return {}; }
        [[nodiscard]] tier_counts counts() const noexcept { return {}; }
        [[nodiscard]] bool is_null() const noexcept { return true; }
    };

    [[nodiscard]] state open() const { return {}; }
};

static_assert(tier_policy<none>);

}}} // namespace kvcache::tier
