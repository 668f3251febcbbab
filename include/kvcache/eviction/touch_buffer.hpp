// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/id.hpp>

#include <array>
#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// A buffer of the last few touches, for a policy that moves touched entries. Each touch waits while its memory is
/// prefetched, and touches are applied in order. Before any other operation the policy applies the remaining ones.
///
///     touch -> [ fetch: its own links .  .  reach: its neighbors' .  .  apply ]
///
/// Cost: O(1) each. 64 bytes.
class touch_buffer {
public:
    /// Adds a touch. `fetch(slot)` prefetches a slot's own memory, `reach(slot)` reads it and prefetches the memory it
    /// refers to. `apply(slot)` applies the oldest touch once the ring is full.
    template <class Fetch, class Reach, class Apply>
    void add(slot_id slot, Fetch&& fetch, Reach&& reach, Apply&& apply) {
        if (end_ - begin_ == ring_.size())
            apply(ring_[begin_++ % ring_.size()]);
        fetch(slot);
        ring_[end_++ % ring_.size()] = slot;
        if (end_ - begin_ > ring_.size() / 2)
            reach(ring_[(end_ - 1 - ring_.size() / 2) % ring_.size()]);
    }

    /// Applies all waiting touches.
    template <class Apply>
    void apply_all(Apply&& apply) {
        while (begin_ != end_)
            apply(ring_[begin_++ % ring_.size()]);
    }

private:
    std::array<slot_id, 16> ring_ = {};
    std::uint32_t begin_ = 0, end_ = 0; // number of touches applied, and added
};

}}} // namespace kvcache::eviction
