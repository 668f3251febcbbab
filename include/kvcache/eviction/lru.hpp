// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/slot_lists.hpp>

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Evicts the least recently used entry. Admission and every touch move an entry to the front of one LRU list. An entry
/// that is not evictable is in use, so it moves to the front when the search meets it.
///
///     touch, admit -> [ newest ... oldest ] -> victim
struct lru {
    using role = eviction_role;

    /// Cost: O(1) each; victim amortized, while a fixed fraction of the entries is evictable. 8 bytes a slot.
    class state {
    public:
        explicit state(std::size_t slots) : queue_(slots, 1) {}

        void admit(slot_id slot, const eviction_entry&) { queue_.push_front(slot, 0); }

        void touch(slot_id slot) { queue_.move_to_front(slot, 0); }

        void on_released(slot_id slot) { touch(slot); }

        void erase(slot_id slot) { queue_.remove(slot); }

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
            return queue_.oldest(0, is_evictable);
        }

    private:
        slot_lists queue_;
    };

    [[nodiscard]] state open(eviction_capacity capacity) const { return state{capacity.slots}; }
};

static_assert(eviction_policy<lru>);

}}} // namespace kvcache::eviction
