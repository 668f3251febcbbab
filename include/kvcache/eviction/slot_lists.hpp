// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/prefetch.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Doubly linked lists of slots, each slot in at most one: rings of 32-bit links through a sentinel for each list.
///
///     front: newest <-> ... <-> oldest :back        newer() leads to the front
///
/// Cost: O(1) each. 8 bytes a slot, and 8 a list.
class slot_lists {
public:
    slot_lists(std::size_t slots, std::size_t queues)
        : links_(slots + queues), slots_(static_cast<std::uint32_t>(slots)) {
        for (std::size_t q = slots; q < links_.size(); ++q)
            links_[q] = {static_cast<std::uint32_t>(q), static_cast<std::uint32_t>(q)};
    }

    [[nodiscard]] std::size_t slots() const noexcept { return slots_; }

    /// Returns whether the slot is in a list.
    [[nodiscard]] bool contains(slot_id slot) const noexcept { return links_[index_of(slot)].newer != nowhere; }
    [[nodiscard]] bool empty(std::uint32_t queue) const noexcept {
        return links_[slots_ + queue].newer == slots_ + queue;
    }

    /// The ends of a list.
    /// Requires: it is not empty.
    [[nodiscard]] slot_id front(std::uint32_t queue) const noexcept { return slot_id{links_[slots_ + queue].older}; }
    [[nodiscard]] slot_id back(std::uint32_t queue) const noexcept { return slot_id{links_[slots_ + queue].newer}; }

    /// The neighbor toward the front, and toward the back. Past either end `ends` is true of the result.
    [[nodiscard]] slot_id newer(slot_id slot) const noexcept { return slot_id{links_[index_of(slot)].newer}; }
    [[nodiscard]] slot_id older(slot_id slot) const noexcept { return slot_id{links_[index_of(slot)].older}; }
    [[nodiscard]] bool ends(slot_id slot) const noexcept { return index_of(slot) >= slots_; }

    /// Prefetches a slot's links, and those of its neighbors.
    KVCACHE_INLINE void prefetch(slot_id slot) const noexcept {
        kvcache::prefetch_to_write(links_.data(), index_of(slot));
    }
    KVCACHE_INLINE void prefetch_neighbours(slot_id slot) const noexcept {
        const auto [newer, older] = links_[index_of(slot)];
        kvcache::prefetch_to_write(links_.data(), newer);
        kvcache::prefetch_to_write(links_.data(), older);
    }

    /// Requires: the slot is in no list.
    void push_front(slot_id slot, std::uint32_t queue) noexcept {
        const std::uint32_t end = slots_ + queue, second = links_[end].older, at = index_of(slot);
        links_[at] = {end, second};
        links_[second].newer = at;
        links_[end].older = at;
    }

    /// Requires: the slot is in a list.
    void remove(slot_id slot) noexcept {
        link& here = links_[index_of(slot)];
        links_[here.newer].older = here.older;
        links_[here.older].newer = here.newer;
        here = {};
    }

    void move_to_front(slot_id slot, std::uint32_t queue) noexcept {
        remove(slot);
        push_front(slot, queue);
    }

    /// The oldest evictable slot of a list. Slots before it move to the front: a slot that is not evictable is in use.
    /// Cost: amortized O(1), while a fixed fraction of the slots is evictable.
    template <class IsEvictable>
    [[nodiscard]] std::optional<slot_id> oldest(std::uint32_t queue, IsEvictable&& is_evictable) {
        return oldest(queue, is_evictable, slots_);
    }

    /// The same among the oldest `most` slots. A later search continues where this one ended.
    template <class IsEvictable>
    [[nodiscard]] std::optional<slot_id> oldest(std::uint32_t queue, IsEvictable&& is_evictable, std::size_t most) {
        if (empty(queue))
            return std::nullopt;
        const slot_id last = front(queue);
        for (bool all = false; !all && most > 0; --most) {
            const slot_id slot = back(queue);
            if (is_evictable(slot))
                return slot;
            all = slot == last;
            move_to_front(slot, queue);
        }
        return std::nullopt;
    }

private:
    static constexpr std::uint32_t nowhere = 0xffffffffu;
    struct link { // a sentinel's `older` is the front, its `newer` the back
        std::uint32_t newer = nowhere;
        std::uint32_t older = nowhere;
    };

    std::vector<link> links_; // the slots, then the sentinels
    std::uint32_t slots_;
};

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
