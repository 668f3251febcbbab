// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/slot_queues.hpp>

namespace kvcache::inline KVCACHE_ABI {

/// The least recently used entry leaves first. Admission and every touch move an entry to the front of one queue; the
/// victim is the last that may leave. One that may not leave is in use now, so it moves to the front as it is met.
///
///     touch, admit -> [ newest ... oldest ] -> victim
struct lru {
    using role = eviction_role;
    class state;
    [[nodiscard]] state open(eviction_room room) const;
};

/// Cost: O(1) each; victim amortised, while a fixed share of the entries may leave. 8 bytes a slot.
class lru::state {
public:
    explicit state(std::size_t slots) : queue_(slots, 1) {}

    void admit(slot_id slot, const entry&) {
        expects(!queue_.contains(slot), "an entry is admitted once");
        queue_.push_front(slot, 0);
    }

    void touch(slot_id slot) {
        expects(queue_.contains(slot), "a touched entry was admitted");
        queue_.move_to_front(slot, 0);
    }

    void settle(slot_id slot) { touch(slot); }

    void erase(slot_id slot) {
        expects(queue_.contains(slot), "an erased entry was admitted");
        queue_.remove(slot);
    }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& may_leave) {
        return queue_.oldest(0, may_leave);
    }

private:
    slot_queues queue_;
};

inline lru::state lru::open(eviction_room room) const {
    return state{room.slots};
}

static_assert(eviction_policy<lru>);

} // namespace kvcache
