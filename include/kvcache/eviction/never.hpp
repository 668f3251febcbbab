// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/eviction/concept.hpp>

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Evicts nothing. A full cache refuses new entries instead, so its entries stay until the owner removes them.
struct never {
    using role = eviction_role;

    /// Cost: O(1) each. 0 bytes a slot.
    class state {
    public:
        void admit(slot_id, const eviction_entry&) {}
        void touch(slot_id) {}
        void erase(slot_id) {}

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> victim(IsEvictable&&) {
            return std::nullopt;
        }
    };

    [[nodiscard]] state open(eviction_capacity) const { return {}; }
};

static_assert(eviction_policy<never>);

}}} // namespace kvcache::eviction
