// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/slot_lists.hpp>

#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Evicts entries in order of arrival, used or not. An entry arrives when it is first released, so that a chain is
/// queued and evicted tail first. An entry that is not evictable goes back to the front when the search meets it.
///
///     admit, first release -> [ newest ... oldest ] -> victim
struct fifo {
    using role = eviction_role;

    /// Cost: O(1) each; victim amortized, while a fixed fraction of the entries is evictable. 9 bytes a slot.
    class state {
    public:
        explicit state(std::size_t slots) : queue_(slots, 1), settled_(slots) {}

        void admit(slot_id slot, const eviction_entry&) {
            queue_.push_front(slot, 0);
            settled_[index_of(slot)] = 0;
        }

        void touch([[maybe_unused]] slot_id slot) {}

        void on_released(slot_id slot) {
            if (settled_[index_of(slot)] == 0)
                queue_.move_to_front(slot, 0);
            settled_[index_of(slot)] = 1;
        }

        void erase(slot_id slot) { queue_.remove(slot); }

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
            return queue_.oldest(0, is_evictable);
        }

    private:
        slot_lists queue_;
        std::vector<std::uint8_t> settled_; // whether it was released once
    };

    [[nodiscard]] state open(eviction_capacity capacity) const { return state{capacity.slots}; }
};

static_assert(eviction_policy<fifo>);

}}} // namespace kvcache::eviction
