// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/slot_lists.hpp>

#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Keeps only as much of a conversation as its next turn needs to answer in time. The next turn consists of the entries
/// of the last request and `next_turn` new ones, of which `budget` can be computed within the time to first token. The
/// last `budget - next_turn` entries of the last request are therefore safe to evict. Safe entries are evicted first,
/// the least recently used before the others, then the rest. A longer request of the conversation makes its earlier
/// entries needed again.
///
///     conversation: [ needed  needed  needed  needed | safe  safe ] [ next turn ]
///                                                    '------- budget -----------'
///     [ needed: newest ... oldest ]   [ safe: newest ... oldest ] -> victim, and needed ones after them
///
/// An entry that is not evictable moves to the front of its list. "Tail-optimized caching for LLM inference", arXiv
/// 2510.15152.
struct tail_safe_lru {
    using role = eviction_role;
    std::uint32_t budget = 64;    ///< Entries that can be computed within the time to first token.
    std::uint32_t next_turn = 32; ///< Entries that the next turn is expected to add.

    /// Cost: O(1) each, the admission of a request's last entry O(length of the request); victim amortized, while a
    /// fixed fraction of the entries is evictable. 17 bytes a slot.
    class state {
    public:
        state(const tail_safe_lru& policy, std::size_t slots)
            : queues_(slots, 2),
              parents_(slots, nowhere),
              depths_(slots),
              places_(slots),
              losable_(policy.budget > policy.next_turn ? policy.budget - policy.next_turn : 0) {}

        void admit(slot_id slot, const eviction_entry& newcomer) {
            const std::uint32_t at = index_of(slot);
            parents_[at] = newcomer.parent ? index_of(*newcomer.parent) : nowhere;
            depths_[at] = newcomer.depth;
            const bool is_safe = newcomer.length > 0 && std::size_t{newcomer.depth} + losable_ >= newcomer.length;
            places_[at] = is_safe ? safe : needed;
            queues_.push_front(slot, places_[at]);
            if (newcomer.depth + 1 == newcomer.length)
                need_before(slot, newcomer.length);
        }

        void touch(slot_id slot) { queues_.move_to_front(slot, places_[index_of(slot)]); }

        void on_released(slot_id slot) { touch(slot); }

        void erase(slot_id slot) { queues_.remove(slot); }

        /// Returns whether the entry can be evicted without delaying the next turn.
        [[nodiscard]] bool is_safe(slot_id slot) const { return places_[index_of(slot)] == safe; }

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
            if (const auto found = queues_.oldest(safe, is_evictable))
                return found;
            return queues_.oldest(needed, is_evictable);
        }

    private:
        static constexpr std::uint32_t nowhere = 0xffffffffu;
        static constexpr std::uint8_t needed = 0, safe = 1; // queues

        // Marks the entries of a complete request as needed, except its last ones.
        void need_before(slot_id last, std::uint32_t length) {
            std::uint32_t depth = depths_[index_of(last)];
            for (std::uint32_t at = parents_[index_of(last)]; at != nowhere; at = parents_[at]) {
                if (!queues_.contains(slot_id{at}) || depths_[at] + 1 != depth)
                    return; // the parent's slot was reused
                depth = depths_[at];
                if (std::size_t{depth} + losable_ >= length || places_[at] == needed)
                    continue;
                places_[at] = needed;
                queues_.move_to_front(slot_id{at}, needed);
            }
        }

        slot_lists queues_;
        std::vector<std::uint32_t> parents_; // slots
        std::vector<std::uint32_t> depths_;
        std::vector<std::uint8_t> places_;
        std::size_t losable_; // entries at the end of a conversation
    };

    [[nodiscard]] state open(eviction_capacity capacity) const { return state{*this, capacity.slots}; }
};

static_assert(eviction_policy<tail_safe_lru>);

}}} // namespace kvcache::eviction
