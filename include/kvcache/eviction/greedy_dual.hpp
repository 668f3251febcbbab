// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/eviction/slot_heap.hpp>

#include <cstddef>
#include <optional>

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Slots ranked by the clock plus a value. The slot of lowest rank is evicted, and the clock advances to its rank. A
/// value that is not renewed therefore loses to new entries in time.
///
/// Cao and Irani, "Cost-aware WWW proxy caching algorithms", USITS 1997.
///
/// Cost: O(log n) each; a search in which the first candidate is evictable O(1). 20 bytes a slot.
class greedy_dual {
public:
    explicit greedy_dual(std::size_t slots) : heap_(slots) {}

    [[nodiscard]] bool contains(slot_id slot) const noexcept { return heap_.contains(slot); }

    /// Adds a slot, or sets its value as of now.
    void rank(slot_id slot, double worth) noexcept { heap_.rank(slot, clock_ + worth); }

    /// Requires: the slot is ranked, here and in all functions below.
    void remove(slot_id slot) noexcept { heap_.remove(slot); }

    /// A slot with children keeps its rank; searches skip it.
    void on_child_added(slot_id slot) noexcept { heap_.set_aside(slot); }
    void on_last_child_removed(slot_id slot) noexcept { heap_.put_back(slot); }

    /// Removes a victim, and advances the clock to its rank.
    void evict(slot_id slot) noexcept {
        clock_ = heap_.rank(slot);
        heap_.remove(slot);
    }

    /// The evictable slot of lowest rank. A slot that is not evictable is in use: it is ranked anew, as if the clock
    /// stood at its rank.
    template <class MayLeave, class Worth>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& is_evictable, Worth&& worth) {
        for (std::size_t met = 0; met < heap_.size(); ++met) {
            const slot_id lowest = heap_.at(0);
            if (is_evictable(lowest))
                return lowest;
            heap_.rank(lowest, heap_.rank(lowest) + worth(lowest));
        }
        // Slots of low value may have been checked repeatedly before one of high value was checked at all.
        std::optional<slot_id> found;
        for (std::size_t place = 0; place < heap_.size(); ++place)
            if (const slot_id slot = heap_.at(place); (!found || heap_.before(slot, *found)) && is_evictable(slot))
                found = slot;
        return found;
    }

private:
    slot_heap heap_;
    double clock_ = 0.0;
};

}}} // namespace kvcache::eviction
