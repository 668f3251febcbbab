// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/slot_lists.hpp>

#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// SIEVE. A hand moves through a FIFO queue from its oldest entry to its newest and around again. It spares an entry
/// that was used since the hand last passed and clears its mark; the first entry without a mark is evicted. Entries do
/// not move: new entries join at the front, where the hand arrives last, and an entry that is not evictable is skipped.
///
///     admit -> [ newest  .  .  used  .  .  oldest ]
///                         <-- hand
///
/// Zhang et al., "SIEVE is simpler than LRU", NSDI 2024.
struct sieve {
    using role = eviction_role;

    /// Cost: O(1) each; victim amortized, while a fixed fraction of the entries is evictable. 9 bytes a slot.
    class state {
    public:
        explicit state(std::size_t slots)
            : queue_(slots, 1), marks_(slots), hand_(slot_id{static_cast<std::uint32_t>(slots)}) {}

        void admit(slot_id slot, const eviction_entry&) {
            queue_.push_front(slot, 0);
            marks_[index_of(slot)] = fresh;
        }

        void touch(slot_id slot) { marks_[index_of(slot)] |= used; }

        void on_released(slot_id slot) {
            if ((marks_[index_of(slot)] & fresh) != 0) { // its first release: a chain queues tail first
                step_off(slot);
                queue_.move_to_front(slot, 0);
            }
            marks_[index_of(slot)] &= used;
        }

        void erase(slot_id slot) {
            step_off(slot);
            queue_.remove(slot);
        }

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
            // One round clears every mark, the next checks every entry.
            for (std::size_t met = 0; met < 2 * queue_.slots() && !queue_.empty(0); ++met) {
                if (queue_.ends(hand_))
                    hand_ = queue_.back(0);
                std::uint8_t& marks = marks_[index_of(hand_)];
                if ((marks & used) == 0 && is_evictable(hand_))
                    return hand_;
                marks &= fresh;
                hand_ = queue_.newer(hand_);
            }
            return std::nullopt;
        }

    private:
        static constexpr std::uint8_t used = 1;  // since the hand last passed
        static constexpr std::uint8_t fresh = 2; // not yet released

        void step_off(slot_id slot) {
            if (hand_ == slot)
                hand_ = queue_.newer(slot);
        }

        slot_lists queue_;
        std::vector<std::uint8_t> marks_;
        slot_id hand_; // past the front: restarts at the oldest
    };

    [[nodiscard]] state open(eviction_capacity capacity) const { return state{capacity.slots}; }
};

static_assert(eviction_policy<sieve>);

}}} // namespace kvcache::eviction
