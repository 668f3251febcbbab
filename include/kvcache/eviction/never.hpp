// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/eviction/concept.hpp>

namespace kvcache::inline KVCACHE_ABI {

/// Nothing leaves. A cache that is full refuses what does not fit instead, so that what it holds is there to stay. Its
/// owner makes room by taking entries away.
struct never {
    using role = eviction_role;
    class state;
    [[nodiscard]] state open(eviction_room room) const;
};

/// Cost: O(1) each. 0 bytes a slot.
class never::state {
public:
    void admit(slot_id, const entry&) {}
    void touch(slot_id) {}
    void erase(slot_id) {}

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&&) {
        return std::nullopt;
    }
};

inline never::state never::open(eviction_room) const {
    return {};
}

static_assert(eviction_policy<never>);

} // namespace kvcache
