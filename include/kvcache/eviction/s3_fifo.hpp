// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/slot_lists.hpp>

#include <algorithm>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// S3-FIFO. New entries join a small queue. Those used `threshold` times by its end move to the main queue; the others
/// are evicted and leave a ghost. An entry that returns while its ghost is remembered joins the main queue directly. At
/// the end of the main queue an entry gets another round for each use, at most three. An entry that is not evictable
/// gets another round in either queue.
///
///     admit -> [ small ] -> victim -> [ ghosts ] -.
///                  '- used -> [ main ] -> victim   |
///     admit ------------------^ <-- returns -------'
///
/// Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023.
struct s3_fifo {
    using role = eviction_role;
    double small_fraction = 0.1; ///< Share of the capacity for the small queue.
    double ghost_fraction = 0.9; ///< Total bytes of the ghosts' entries, relative to the capacity.
    std::uint32_t threshold = 2; ///< Uses in the small queue that promote to the main queue, 1 to 3.

    /// Cost: O(1) each; victim amortized, while a fixed fraction of the entries is evictable. 25 bytes a slot and 16 a
    /// ghost, at most `ghost_fraction` ghosts a slot.
    class state {
    public:
        state(const s3_fifo& policy, eviction_capacity capacity)
            : queues_(capacity.slots, 2),
              entries_(capacity.slots),
              marks_(capacity.slots),
              ghosts_(share(capacity.slots, policy.ghost_fraction) + 1, capacity.bytes),
              ghost_bytes_(share(capacity.bytes, policy.ghost_fraction)),
              main_bytes_(capacity.bytes - std::min(capacity.bytes, share(capacity.bytes, policy.small_fraction))),
              threshold_(policy.threshold) {
            require(policy.threshold >= 1 && policy.threshold <= most, "s3_fifo counts one to three uses");
        }

        void on_miss(const eviction_entry& newcomer) {
            missed_ = newcomer.key;
            returns_ = ghosts_.take(newcomer.key).has_value();
        }

        void admit(slot_id slot, const eviction_entry& newcomer) {
            if (missed_ != newcomer.key)
                on_miss(newcomer);
            entries_[index_of(slot)] = {newcomer.key, newcomer.bytes};
            insert(slot, returns_ ? main : small);
            marks_[index_of(slot)] = returns_ ? main : fresh;
            missed_.reset();
        }

        void touch(slot_id slot) {
            std::uint8_t& marks = marks_[index_of(slot)];
            if (uses(marks) < most)
                marks = static_cast<std::uint8_t>(marks + one_use);
        }

        void on_released(slot_id slot) {
            if ((marks_[index_of(slot)] & fresh) != 0) // its first release: a chain queues tail first
                queues_.move_to_front(slot, queue_of(slot));
            marks_[index_of(slot)] &= static_cast<std::uint8_t>(~fresh);
        }

        void erase(slot_id slot) {
            queues_.remove(slot);
            bytes_[queue_of(slot)] -= entries_[index_of(slot)].bytes;
            --count_[queue_of(slot)];
        }

        void evict(slot_id slot) {
            erase(slot);
            if (count_[small] > 0) // a likely next victim
                ghosts_.prefetch(entries_[index_of(queues_.back(small))].key);
            const auto [key, bytes] = entries_[index_of(slot)];
            if (queue_of(slot) != small || bytes > ghost_bytes_ || ghosts_.contains(key))
                return;
            while (ghosts_.size() > 0 && ghosts_.bytes() + bytes > ghost_bytes_)
                ghosts_.pop();
            ghosts_.push(key, {.bytes = bytes});
        }

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
            // One round checks or promotes all of the small queue, and most + 1 rounds check all of the main queue.
            std::size_t small_left = count_[small];
            std::size_t main_left = (count_[main] + count_[small]) * (most + 1);
            while (small_left > 0 || main_left > 0) {
                const bool full = bytes_[main] > main_bytes_ || count_[small] == 0;
                if (count_[main] > 0 && main_left > 0 && (full || small_left == 0)) {
                    --main_left;
                    const slot_id oldest = queues_.back(main);
                    std::uint8_t& marks = marks_[index_of(oldest)];
                    if (uses(marks) == 0 && is_evictable(oldest))
                        return oldest;
                    if (uses(marks) > 0)
                        marks = static_cast<std::uint8_t>(marks - one_use);
                    queues_.move_to_front(oldest, main);
                } else if (count_[small] > 0 && small_left > 0) {
                    --small_left;
                    const slot_id oldest = queues_.back(small);
                    if (uses(marks_[index_of(oldest)]) >= threshold_)
                        promote(oldest);
                    else if (is_evictable(oldest))
                        return oldest;
                    else
                        queues_.move_to_front(oldest, small);
                } else {
                    break;
                }
            }
            return queues_.oldest(main, is_evictable); // entries promoted after its rounds
        }

    private:
        static constexpr std::uint8_t small = 0, main = 1; // queues
        static constexpr std::uint8_t fresh = 2;           // not yet released
        static constexpr std::uint8_t one_use = 4;         // marks: uses, fresh, queue
        static constexpr std::uint32_t most = 3;           // saturation of the use count
        struct known {
            std::uint64_t key = 0;
            std::size_t bytes = 0;
        };

        [[nodiscard]] static std::size_t share(std::size_t whole, double fraction) {
            return static_cast<std::size_t>(static_cast<double>(whole) * fraction);
        }
        [[nodiscard]] static std::uint32_t uses(std::uint8_t marks) { return marks / one_use; }
        [[nodiscard]] std::uint8_t queue_of(slot_id slot) const { return marks_[index_of(slot)] & main; }

        void insert(slot_id slot, std::uint8_t queue) {
            queues_.push_front(slot, queue);
            bytes_[queue] += entries_[index_of(slot)].bytes;
            ++count_[queue];
        }

        void promote(slot_id slot) {
            erase(slot);
            insert(slot, main);
            marks_[index_of(slot)] = main;
        }

        slot_lists queues_;
        std::vector<known> entries_;
        std::vector<std::uint8_t> marks_;
        ghost_list ghosts_;
        std::size_t ghost_bytes_;
        std::size_t main_bytes_; // the main queue's share
        std::uint32_t threshold_;
        std::size_t bytes_[2] = {};
        std::size_t count_[2] = {};
        std::optional<std::uint64_t> missed_;
        bool returns_ = false; // the missed entry had a ghost
    };

    [[nodiscard]] state open(eviction_capacity capacity) const { return state{*this, capacity}; }
};

static_assert(eviction_policy<s3_fifo>);

}}} // namespace kvcache::eviction
