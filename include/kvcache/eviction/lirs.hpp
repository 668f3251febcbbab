// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/slot_lists.hpp>

#include <algorithm>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Low inter-reference recency set (LIRS). Entries with a short reuse interval are kept (LIR); all others pass through
/// a small queue (HIR), whose oldest entry is evicted. An interval is short if the entry's previous use is later than
/// the last use of the longest-idle kept entry. The entry then becomes kept, and the longest-idle kept entries move to
/// the queue. Ghosts of entries evicted from the queue are compared too, until they are older than every kept entry, or
/// the kept entries, the recent ones and the ghosts exceed twice the capacity.
///
///     used twice -> [ kept: newest ... idle ] --.      recent: used since the idle one was
///     admit ------> [ passing: newest ... oldest ] <-' -> victim -> [ ghosts, while recent ]
///     touch, or return, while recent: -> kept
///
/// An entry that is not evictable moves to the front of its queue. Jiang and Zhang, "LIRS: an efficient low
/// inter-reference recency set replacement policy", SIGMETRICS 2002. The paper keeps recent entries in a stack that is
/// pruned from the bottom; here an entry's last use is compared with that of the longest-idle kept entry, which is
/// equivalent.
struct lirs {
    using role = eviction_role;
    double passing_fraction = 0.01; ///< Share of the capacity for the passing queue.
    bool eager_demotion = false;    ///< A touch of an entry that is not recent demotes kept entries, as in libCacheSim.

    /// Cost: O(1) each; victim amortized, while a fixed fraction of the entries is evictable. 29 bytes a slot and 21 a
    /// ghost, at most one ghost a slot.
    class state {
    public:
        state(const lirs& policy, eviction_capacity capacity)
            : queues_(capacity.slots, 2),
              entries_(capacity.slots),
              times_(capacity.slots),
              marks_(capacity.slots),
              ghosts_(capacity.slots + 1, 2 * capacity.bytes, ghost_list::marks::kept),
              first_recent_(slot_id{static_cast<std::uint32_t>(capacity.slots)}),
              capacity_(capacity.bytes),
              passing_share_(
                  std::min(capacity.bytes,
                           std::max<std::size_t>(1, static_cast<std::size_t>(policy.passing_fraction *
                                                                             static_cast<double>(capacity.bytes))))),
              kept_share_(capacity.bytes - passing_share_),
              eager_(policy.eager_demotion) {}

        void on_miss(const eviction_entry& newcomer) {
            missed_ = newcomer.key;
            bytes_to_come_ = newcomer.bytes;
            const std::optional<ghost> known_before = ghosts_.take(newcomer.key);
            returns_ = known_before && !before_all_kept(known_before->mark);
            if (returns_)
                make_room_among_kept(newcomer.bytes);
        }

        void admit(slot_id slot, const eviction_entry& newcomer) {
            if (missed_ != newcomer.key)
                on_miss(newcomer);
            entries_[index_of(slot)] = {newcomer.key, newcomer.bytes};
            insert(slot, returns_ || bytes_[kept] + newcomer.bytes <= kept_share_ ? kept : passing, true);
            missed_.reset();
            returns_ = false;
            prune();
            forget_beyond_the_limit();
        }

        void touch(slot_id slot) {
            const std::size_t bytes = entries_[index_of(slot)].bytes;
            if (is_kept(slot)) {
                renew(slot);
            } else if (is_recent(slot)) {
                unlink(slot);
                make_room_among_kept(bytes);
                insert(slot, kept, true);
                prune();
            } else {
                unlink(slot);
                insert(slot, passing, true);
                if (eager_)
                    make_room_among_kept(bytes);
            }
            forget_beyond_the_limit();
        }

        void on_released(slot_id slot) {
            if (is_kept(slot))
                renew(slot);
            else
                to_front_of_passing(slot);
        }

        void erase(slot_id slot) {
            unlink(slot);
            prune();
        }

        void evict(slot_id slot) {
            const bool leaves_ghost = !is_kept(slot) && is_recent(slot);
            unlink(slot);
            const auto [key, bytes] = entries_[index_of(slot)];
            if (leaves_ghost && !ghosts_.contains(key))
                ghosts_.push(key, {.bytes = bytes, .mark = times_[index_of(slot)]});
            prune();
            forget_beyond_the_limit();
        }

        /// Returns whether the passing queue exceeds its share, including the missed entry if it is to join the queue.
        /// Reference implementations with published byte counts evict in this case, even if the cache is not full.
        [[nodiscard]] bool crowded() const {
            const bool joins = missed_ && !returns_ && bytes_[kept] + bytes_to_come_ > kept_share_;
            return !queues_.empty(passing) && bytes_[passing] + (joins ? bytes_to_come_ : 0) > passing_share_;
        }

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
            for (std::size_t left = count_passing_; left > 0; --left) {
                const slot_id oldest = queues_.back(passing);
                if (is_evictable(oldest))
                    return oldest;
                to_front_of_passing(oldest);
            }
            const slot_id last = queues_.empty(kept) ? slot_id{} : queues_.front(kept);
            for (bool all = queues_.empty(kept); !all;) {
                const slot_id idle = queues_.back(kept);
                if (is_evictable(idle))
                    return idle;
                all = idle == last;
                renew(idle);
            }
            return std::nullopt;
        }

    private:
        static constexpr std::uint8_t kept = 0, passing = 1; // queues
        static constexpr std::uint8_t recent = 2;            // marks: recent, queue
        struct known {
            std::uint64_t key = 0;
            std::size_t bytes = 0;
        };

        [[nodiscard]] bool is_kept(slot_id slot) const { return (marks_[index_of(slot)] & passing) == 0; }

        // Whether a time precedes the last use of the longest-idle kept entry. Times may wrap.
        [[nodiscard]] bool before_all_kept(std::uint32_t time) const {
            return !queues_.empty(kept) && static_cast<std::int32_t>(time - times_[index_of(queues_.back(kept))]) < 0;
        }
        [[nodiscard]] bool is_recent(slot_id slot) const {
            return (marks_[index_of(slot)] & recent) != 0 && !before_all_kept(times_[index_of(slot)]);
        }

        void insert(slot_id slot, std::uint8_t queue, bool used) {
            queues_.push_front(slot, queue);
            bytes_[queue] += entries_[index_of(slot)].bytes;
            marks_[index_of(slot)] = queue;
            if (used)
                times_[index_of(slot)] = ++now_;
            if (queue == kept)
                return;
            ++count_passing_;
            if (used)
                mark_recent(slot);
            if (queues_.ends(first_recent_))
                first_recent_ = slot;
        }

        void unlink(slot_id slot) {
            if (!is_kept(slot)) {
                mark_not_recent(slot);
                if (first_recent_ == slot)
                    first_recent_ = queues_.newer(slot);
                --count_passing_;
            }
            queues_.remove(slot);
            bytes_[is_kept(slot) ? kept : passing] -= entries_[index_of(slot)].bytes;
        }

        // Records a use of a kept entry.
        void renew(slot_id slot) {
            queues_.move_to_front(slot, kept);
            times_[index_of(slot)] = ++now_;
            prune();
        }

        void to_front_of_passing(slot_id slot) {
            if (first_recent_ == slot && queues_.front(passing) != slot)
                first_recent_ = queues_.newer(slot);
            queues_.move_to_front(slot, passing);
            if (queues_.ends(first_recent_))
                first_recent_ = slot;
            if (is_recent(slot))
                times_[index_of(slot)] = ++now_;
        }

        void mark_recent(slot_id slot) {
            marks_[index_of(slot)] |= recent;
            recent_bytes_ += entries_[index_of(slot)].bytes;
        }
        void mark_not_recent(slot_id slot) {
            if ((marks_[index_of(slot)] & recent) != 0)
                recent_bytes_ -= entries_[index_of(slot)].bytes;
            marks_[index_of(slot)] &= passing;
        }

        // Demotes the longest-idle kept entries until `bytes` more can be kept.
        void make_room_among_kept(std::size_t bytes) {
            while (!queues_.empty(kept) && bytes_[kept] + bytes > kept_share_) {
                const slot_id idle = queues_.back(kept);
                unlink(idle);
                insert(idle, passing, false);
            }
            prune();
        }

        // Clears the recent mark of entries older than every kept entry, and removes such ghosts. The passing entries
        // and the ghosts are in order of last use, except for entries that were not recent anyway or were not
        // evictable.
        void prune() {
            if (queues_.empty(kept))
                return;
            for (; !queues_.ends(first_recent_) && !is_recent(first_recent_);
                 first_recent_ = queues_.newer(first_recent_))
                mark_not_recent(first_recent_);
            while (ghosts_.size() > 0 && before_all_kept(ghosts_.oldest().mark))
                ghosts_.pop();
        }

        void forget_beyond_the_limit() {
            while (ghosts_.size() > 0 && bytes_[kept] + recent_bytes_ + ghosts_.bytes() > 2 * capacity_)
                ghosts_.pop();
        }

        slot_lists queues_;
        std::vector<known> entries_;
        std::vector<std::uint32_t> times_; // by slot: of the last use
        std::vector<std::uint8_t> marks_;
        ghost_list ghosts_;    // marked with the time of their last use
        slot_id first_recent_; // oldest passing entry that may be recent
        std::size_t capacity_;
        std::size_t passing_share_;
        std::size_t kept_share_;
        bool eager_;
        std::size_t bytes_[2] = {};
        std::size_t recent_bytes_ = 0; // of the passing entries
        std::size_t count_passing_ = 0;
        std::uint32_t now_ = 0; // number of uses
        std::optional<std::uint64_t> missed_;
        std::size_t bytes_to_come_ = 0;
        bool returns_ = false; // the missed entry had a ghost
    };

    [[nodiscard]] state open(eviction_capacity capacity) const { return state{*this, capacity}; }
};

static_assert(eviction_policy<lirs>);

}}} // namespace kvcache::eviction
