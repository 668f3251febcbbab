// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/slot_queues.hpp>

#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// The entry that came first leaves first, used or not. It has come when its first holder lets go, so that a chain
/// queues tail first and leaves so. One that may not leave queues up anew as it is met.
///
///     admit, first settle -> [ newest ... oldest ] -> victim
struct fifo {
    using role = eviction_role;
    class state;
    [[nodiscard]] state open(eviction_room room) const;
};

/// Cost: O(1) each; victim amortised, while a fixed share of the entries may leave. 9 bytes a slot.
class fifo::state {
public:
    explicit state(std::size_t slots) : queue_(slots, 1), settled_(slots) {}

    void admit(slot_id slot, const entry&) {
        expects(!queue_.contains(slot), "an entry is admitted once");
        queue_.push_front(slot, 0);
        settled_[index_of(slot)] = 0;
    }

    void touch([[maybe_unused]] slot_id slot) { expects(queue_.contains(slot), "a touched entry was admitted"); }

    void settle(slot_id slot) {
        expects(queue_.contains(slot), "a settled entry was admitted");
        if (settled_[index_of(slot)] == 0)
            queue_.move_to_front(slot, 0);
        settled_[index_of(slot)] = 1;
    }

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
    std::vector<std::uint8_t> settled_; // whether it has been let go once
};

inline fifo::state fifo::open(eviction_room room) const {
    return state{room.slots};
}

static_assert(eviction_policy<fifo>);

} // namespace kvcache
