// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/id.hpp>

#include <array>
#include <cstdint>

namespace kvcache::inline KVCACHE_ABI {

/// The last few touches of a policy that moves what is touched: each waits while the memory that it needs comes, and
/// they are applied in their order. Whoever asks the policy for anything else applies the rest before.
///
///     touch -> [ fetch: its own links .  .  reach: its neighbours' .  .  apply ]
///
/// Cost: O(1) each. 64 bytes.
class touch_ring {
public:
    /// Enters a touch. `fetch(slot)` asks for a slot's own memory, `reach(slot)` reads it and asks for what it leads
    /// to, and `apply(slot)` is done with the oldest once the ring is full.
    template <class Fetch, class Reach, class Apply>
    void add(slot_id slot, Fetch&& fetch, Reach&& reach, Apply&& apply) {
        if (end_ - begin_ == ring_.size())
            apply(ring_[begin_++ % ring_.size()]);
        fetch(slot);
        ring_[end_++ % ring_.size()] = slot;
        if (end_ - begin_ > ring_.size() / 2)
            reach(ring_[(end_ - 1 - ring_.size() / 2) % ring_.size()]);
    }

    /// Applies all that wait.
    template <class Apply>
    void apply_all(Apply&& apply) {
        while (begin_ != end_)
            apply(ring_[begin_++ % ring_.size()]);
    }

private:
    std::array<slot_id, 16> ring_ = {};
    std::uint32_t begin_ = 0, end_ = 0; // touches applied, and entered
};

} // namespace kvcache
