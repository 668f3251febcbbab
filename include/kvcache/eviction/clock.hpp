// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/slot_lists.hpp>

#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// CLOCK: FIFO with one more round for each use. A touch increments an entry's counter, up to 2^bits - 1. At the end of
/// the queue an entry with a nonzero counter is decremented and goes back to the front; one with a zero counter is
/// evicted. An entry that is not evictable goes back to the front as well.
///
///     admit -> [ newest ... oldest ] -> count 0: victim
///                ^----- count - 1 -----'
///
/// Corbato, "A paging experiment with the Multics system", 1968; with more bits, FIFO-Reinsertion.
struct clock {
    using role = eviction_role;
    std::uint32_t bits = 1; ///< Bits of the counter, 1 to 6.

    /// Cost: O(1) each; victim amortized, while a fixed fraction of the entries is evictable. 9 bytes a slot.
    class state {
    public:
        state(const clock& policy, std::size_t slots)
            : queue_(slots, 1), counts_(slots), most_(static_cast<std::uint8_t>((1u << policy.bits) - 1)) {
            require(policy.bits >= 1 && policy.bits <= 6, "clock counts in 1 to 6 bits");
        }

        void admit(slot_id slot, const eviction_entry&) {
            queue_.push_front(slot, 0);
            counts_[index_of(slot)] = fresh;
        }

        void touch(slot_id slot) {
            std::uint8_t& count = counts_[index_of(slot)];
            if ((count & uses) < most_)
                ++count;
        }

        void on_released(slot_id slot) {
            if ((counts_[index_of(slot)] & fresh) != 0) // its first release: a chain queues tail first
                queue_.move_to_front(slot, 0);
            counts_[index_of(slot)] &= uses;
        }

        void erase(slot_id slot) { queue_.remove(slot); }

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
            // After most_ rounds every counter is zero, and the next round checks every entry.
            for (std::size_t met = 0; met < queue_.slots() * (most_ + 1u) && !queue_.empty(0); ++met) {
                const slot_id oldest = queue_.back(0);
                std::uint8_t& count = counts_[index_of(oldest)];
                if ((count & uses) == 0 && is_evictable(oldest))
                    return oldest;
                if ((count & uses) != 0)
                    --count;
                queue_.move_to_front(oldest, 0);
            }
            return std::nullopt;
        }

    private:
        static constexpr std::uint8_t fresh = 0x80; // not yet released
        static constexpr std::uint8_t uses = 0x7f;

        slot_lists queue_;
        std::vector<std::uint8_t> counts_;
        std::uint8_t most_;
    };

    [[nodiscard]] state open(eviction_capacity capacity) const { return state{*this, capacity.slots}; }
};

static_assert(eviction_policy<clock>);

}}} // namespace kvcache::eviction
