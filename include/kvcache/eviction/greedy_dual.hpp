// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/eviction/slot_heap.hpp>

#include <cstddef>
#include <optional>

namespace kvcache::inline KVCACHE_ABI {

/// Slots ranked by a clock and their worth: a slot is ranked at the clock's time plus its worth, the lowest leaves, and
/// the clock moves on to the rank of what left. So worth that is not renewed loses to newcomers in time.
///
/// Cao and Irani, "Cost-aware WWW proxy caching algorithms", USITS 1997.
///
/// Cost: O(log n) each; a search without refusals O(1). 20 bytes a slot.
class greedy_dual {
public:
    explicit greedy_dual(std::size_t slots) : heap_(slots) {}

    [[nodiscard]] bool contains(slot_id slot) const noexcept { return heap_.contains(slot); }

    /// Enters a slot, or says that it is worth this much as of now.
    void rank(slot_id slot, double worth) noexcept { heap_.rank(slot, clock_ + worth); }

    /// Requires: the slot is ranked, as in all below.
    void remove(slot_id slot) noexcept { heap_.remove(slot); }

    /// A slot that cannot leave keeps its rank, and none is met that cannot leave.
    void cover(slot_id slot) noexcept { heap_.set_aside(slot); }
    void uncover(slot_id slot) noexcept { heap_.put_back(slot); }

    /// Removes a victim, and moves the clock.
    void evict(slot_id slot) noexcept {
        clock_ = heap_.rank(slot);
        heap_.remove(slot);
    }

    /// The lowest that may leave. One that may not is in use now: it is ranked anew, as if the clock stood at its rank.
    template <class MayLeave, class Worth>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& may_leave, Worth&& worth) {
        for (std::size_t met = 0; met < heap_.size(); ++met) {
            const slot_id lowest = heap_.at(0);
            if (may_leave(lowest))
                return lowest;
            heap_.rank(lowest, heap_.rank(lowest) + worth(lowest));
        }
        // Entries of little worth may have been met again before one of great worth was met at all.
        std::optional<slot_id> found;
        for (std::size_t place = 0; place < heap_.size(); ++place)
            if (const slot_id slot = heap_.at(place); (!found || heap_.before(slot, *found)) && may_leave(slot))
                found = slot;
        return found;
    }

private:
    slot_heap heap_;
    double clock_ = 0.0;
};

} // namespace kvcache
