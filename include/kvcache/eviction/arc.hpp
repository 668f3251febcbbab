// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/slot_lists.hpp>

#include <algorithm>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Adaptive replacement cache (ARC). Two LRU lists, of entries used once and of entries used again, share the capacity
/// according to a target that adapts. A hit on a ghost of the first list raises the target, one of the second lowers
/// it, and the entry joins the second list. The victim is the oldest of the first list while that list exceeds the
/// target, otherwise the oldest of the second. An entry that is not evictable moves to the front of its list.
///
///     admit -> [ once  ] -> victim -> [ ghosts ] -- returns: target + --.
///                 '- touch -.                                           |
///     admit -> [ again ] <--+-> victim -> [ ghosts ] -- returns: - -----'-> again
///
/// Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003.
struct arc {
    using role = eviction_role;
    std::size_t step = 0; ///< Minimum bytes by which a ghost hit moves the target; 0: the size of its entry.

    /// Cost: O(1) each; victim amortized, while a fixed fraction of the entries is evictable. 25 bytes a slot and 16 a
    /// ghost, at most two ghosts a slot.
    class state {
    public:
        state(const arc& policy, eviction_capacity capacity)
            : queues_(capacity.slots, 2),
              entries_(capacity.slots),
              places_(capacity.slots),
              ghosts_{ghost_list(capacity.slots, capacity.bytes), ghost_list(capacity.slots, capacity.bytes)},
              capacity_(capacity.bytes),
              step_(policy.step) {}

        void on_miss(const eviction_entry& newcomer) {
            missed_ = newcomer.key;
            bytes_to_come_ = newcomer.bytes;
            returns_ = nowhere;
            const auto of_once = static_cast<double>(ghosts_[once].bytes());
            const auto of_again = static_cast<double>(ghosts_[again].bytes());
            const auto least = static_cast<double>(step_ > 0 ? step_ : newcomer.bytes);
            if (ghosts_[once].take(newcomer.key)) {
                returns_ = once;
                target_ = std::min(target_ + least * std::max(of_again / std::max(of_once, 1.0), 1.0),
                                   static_cast<double>(capacity_));
            } else if (ghosts_[again].take(newcomer.key)) {
                returns_ = again;
                target_ = std::max(target_ - least * std::max(of_once / std::max(of_again, 1.0), 1.0), 0.0);
            }
        }

        void admit(slot_id slot, const eviction_entry& newcomer) {
            if (missed_ != newcomer.key)
                on_miss(newcomer);
            entries_[index_of(slot)] = {newcomer.key, newcomer.bytes};
            insert(slot, returns_ == nowhere ? once : again);
            missed_.reset();
            returns_ = nowhere;
        }

        void touch(slot_id slot) {
            erase(slot);
            insert(slot, again);
        }

        void on_released(slot_id slot) { queues_.move_to_front(slot, places_[index_of(slot)]); }

        void erase(slot_id slot) {
            queues_.remove(slot);
            bytes_[places_[index_of(slot)]] -= entries_[index_of(slot)].bytes;
        }

        void evict(slot_id slot) {
            const bool without_ghost = places_[index_of(slot)] == once && all_are_once();
            if (returns_ == nowhere) {
                if (first_is_full()) {
                    if (ghosts_[once].size() > 0)
                        ghosts_[once].pop();
                } else if (bytes_[once] + bytes_[again] + ghosts_[once].bytes() + ghosts_[again].bytes() >=
                           2 * capacity_) {
                    if (ghosts_[again].size() > 0)
                        ghosts_[again].pop();
                }
            }
            erase(slot);
            const auto [key, bytes] = entries_[index_of(slot)];
            if (!without_ghost && !ghosts_[once].contains(key) && !ghosts_[again].contains(key))
                ghosts_[places_[index_of(slot)]].push(key, {.bytes = bytes});
        }

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
            const auto of_once = static_cast<double>(bytes_[once]);
            const bool from_once =
                !queues_.empty(once) && (all_are_once() || queues_.empty(again) || of_once > target_ ||
                                         (of_once == target_ && returns_ == again));
            if (const auto found = queues_.oldest(from_once ? once : again, is_evictable))
                return found;
            return queues_.oldest(from_once ? again : once, is_evictable);
        }

    private:
        static constexpr std::uint8_t once = 0, again = 1, nowhere = 2;
        struct known {
            std::uint64_t key = 0;
            std::size_t bytes = 0;
        };

        // Whether the first list, its ghosts and the new entry exceed the capacity.
        [[nodiscard]] bool first_is_full() const {
            return bytes_[once] + ghosts_[once].bytes() + bytes_to_come_ > capacity_;
        }
        [[nodiscard]] bool all_are_once() const {
            return returns_ == nowhere && first_is_full() && ghosts_[once].size() == 0;
        }

        void insert(slot_id slot, std::uint8_t queue) {
            queues_.push_front(slot, queue);
            places_[index_of(slot)] = queue;
            bytes_[queue] += entries_[index_of(slot)].bytes;
        }

        slot_lists queues_;
        std::vector<known> entries_;
        std::vector<std::uint8_t> places_;
        ghost_list ghosts_[2];
        std::size_t bytes_[2] = {};
        std::size_t capacity_;
        std::size_t step_;
        double target_ = 0.0; // target size of the first list, in bytes
        std::optional<std::uint64_t> missed_;
        std::size_t bytes_to_come_ = 0;
        std::uint8_t returns_ = nowhere; // the list whose ghost the missed entry was
    };

    [[nodiscard]] state open(eviction_capacity capacity) const { return state{*this, capacity}; }
};

static_assert(eviction_policy<arc>);

}}} // namespace kvcache::eviction
