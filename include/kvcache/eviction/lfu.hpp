// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/slot_lists.hpp>

#include <algorithm>
#include <bit>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Evicts the least frequently used entry; ties go to the least recently used. Use counts saturate at 255. With a
/// history, a ghost keeps the count of an evicted entry, which resumes when the entry returns. An entry that is not
/// evictable moves to the front of its list.
///
///     admit -> [ used once ] -> victim -> [ ghosts ]
///       touch: [ twice     ]                  |
///              [ ...       ] <-- returns -----'
struct lfu {
    using role = eviction_role;
    double history = 0.0; ///< Number of ghosts per slot.

    /// Cost: O(1) each; victim amortized, while a fixed fraction of the entries is evictable. 9 bytes a slot; with a
    /// history 17, and 21 a ghost.
    class state {
    public:
        state(const lfu& policy, std::size_t slots)
            : queues_(slots, most + 1),
              counts_(slots),
              keys_(policy.history > 0 ? slots : 0),
              ghosts_(static_cast<std::size_t>(static_cast<double>(slots) * policy.history), 0,
                      ghost_list::marks::kept) {}

        void admit(slot_id slot, const eviction_entry& newcomer) {
            std::uint32_t count = 1;
            if (!keys_.empty()) {
                keys_[index_of(slot)] = newcomer.key;
                if (const auto returns = ghosts_.take(newcomer.key))
                    count = std::min(returns->mark + 1, most);
            }
            insert(slot, count);
        }

        void touch(slot_id slot) {
            const std::uint32_t count = counts_[index_of(slot)];
            erase(slot);
            insert(slot, std::min(count + 1, most));
        }

        void on_released(slot_id slot) { queues_.move_to_front(slot, counts_[index_of(slot)]); }

        void erase(slot_id slot) {
            const std::uint32_t count = counts_[index_of(slot)];
            queues_.remove(slot);
            if (queues_.empty(count))
                filled_[count / 64] &= ~(std::uint64_t{1} << count % 64);
        }

        void evict(slot_id slot) {
            erase(slot);
            if (keys_.empty())
                return;
            ghosts_.take(keys_[index_of(slot)]); // of another entry with the same key
            ghosts_.push(keys_[index_of(slot)], {.mark = counts_[index_of(slot)]});
        }

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
            for (std::uint32_t word = 0; word < 4; ++word)
                for (std::uint64_t left = filled_[word]; left != 0; left &= left - 1)
                    if (const auto found = queues_.oldest(
                            64 * word + static_cast<std::uint32_t>(std::countr_zero(left)), is_evictable))
                        return found;
            return std::nullopt;
        }

    private:
        static constexpr std::uint32_t most = 255;

        void insert(slot_id slot, std::uint32_t count) {
            counts_[index_of(slot)] = static_cast<std::uint8_t>(count);
            queues_.push_front(slot, count);
            filled_[count / 64] |= std::uint64_t{1} << count % 64;
        }

        slot_lists queues_; // by count
        std::vector<std::uint8_t> counts_;
        std::vector<std::uint64_t> keys_;
        ghost_list ghosts_;            // marked with their counts
        std::uint64_t filled_[4] = {}; // one bit per list
    };

    [[nodiscard]] state open(eviction_capacity capacity) const { return state{*this, capacity.slots}; }
};

static_assert(eviction_policy<lfu>);

}}} // namespace kvcache::eviction
