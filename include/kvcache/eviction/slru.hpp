// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/platform/machine.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/slot_lists.hpp>

#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Segmented LRU with segments of equal size. New entries join the lowest segment that has space, and a touch moves an
/// entry to the next segment up. A segment above its share demotes its oldest entries to the front of the one below.
/// The victim is the oldest entry of the lowest segment. An entry that is not evictable moves to the front of its
/// segment.
///
///     admit -> [ lowest ] -> victim      touch: up one,      above its share: down one
///              [  next  ]
///              [ highest]
///
/// Karedla, Love and Wherry, "Caching strategies to improve disk system performance", IEEE Computer 1994.
struct slru {
    using role = eviction_role;
    std::uint32_t segments = 4; ///< 1 to 255; with one this is lru.

    /// Cost: O(segments) each; victim amortized, while a fixed fraction of the entries is evictable. 16 bytes a slot.
    class state {
    public:
        state(const slru& policy, eviction_capacity capacity)
            : queues_(capacity.slots, policy.segments),
              entries_(capacity.slots),
              filled_(policy.segments),
              share_(capacity.bytes / policy.segments) {
            require(policy.segments >= 1 && policy.segments <= 255, "slru has 1 to 255 segments");
        }

        void admit(slot_id slot, const eviction_entry& newcomer) {
            apply_touches();
            expects(std::uint64_t{newcomer.bytes} >> 56 == 0, "an entry is smaller than 2^56 bytes");
            std::uint32_t lowest = 0;
            while (lowest < filled_.size() && filled_[lowest] + newcomer.bytes > share_)
                ++lowest;
            entries_[index_of(slot)].bytes = std::uint64_t{newcomer.bytes} & most_bytes;
            insert(slot, lowest < filled_.size() ? lowest : 0);
            let_down_ = false;
        }

        void touch(slot_id slot) {
            touches_.add(slot, queues_, entries_, [this](slot_id one) { lift(one); });
        }

        void on_released(slot_id slot) {
            apply_touches();
            queues_.move_to_front(slot, segment_of(slot));
        }

        void erase(slot_id slot) {
            apply_touches();
            unlink(slot);
        }

        /// Returns whether the last touch demoted entries into a lowest segment that is now above its share, as entries
        /// of many sizes can. Reference implementations with published byte counts evict in this case, even if the
        /// cache is not full.
        [[nodiscard]] bool crowded() {
            apply_touches();
            return let_down_ && filled_[0] > share_;
        }

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
            apply_touches();
            for (std::uint32_t s = 0; s < filled_.size(); ++s)
                if (const auto found = queues_.oldest(s, is_evictable))
                    return found;
            return std::nullopt;
        }

    private:
        static constexpr std::uint64_t most_bytes = (std::uint64_t{1} << 56) - 1; // of an entry
        struct known {
            std::uint64_t bytes : 56 = 0;
            std::uint64_t segment : 8 = 0;
        };

        [[nodiscard]] std::uint32_t segment_of(slot_id slot) const {
            return static_cast<std::uint32_t>(entries_[index_of(slot)].segment);
        }

        void apply_touches() {
            touches_.apply_all([this](slot_id slot) { lift(slot); });
        }

        void lift(slot_id slot) {
            const std::uint32_t from = segment_of(slot);
            const bool highest = from + 1u == filled_.size();
            unlink(slot);
            insert(slot, highest ? from : from + 1);
            let_down_ = false;
            for (std::uint32_t s = from + 1; !highest && s > 0; --s) {
                while (filled_[s] > share_) {
                    const slot_id oldest = queues_.back(s);
                    unlink(oldest);
                    insert(oldest, s - 1);
                    let_down_ = s == 1;
                }
                if (const slot_id next = queues_.back(s); !queues_.ends(next)) { // likely demoted by a later touch
                    prefetch_to_write(entries_.data(), index_of(next));
                    queues_.prefetch_neighbours(next);
                }
            }
        }

        void insert(slot_id slot, std::uint32_t segment) {
            queues_.push_front(slot, segment);
            known& one = entries_[index_of(slot)];
            one.segment = segment & 0xffu;
            filled_[segment] += static_cast<std::size_t>(one.bytes);
        }

        void unlink(slot_id slot) {
            queues_.remove(slot);
            const known one = entries_[index_of(slot)];
            filled_[one.segment] -= static_cast<std::size_t>(one.bytes);
        }

        slot_lists queues_; // a list per segment
        std::vector<known> entries_;
        touch_buffer touches_;
        std::vector<std::size_t> filled_; // by segment: bytes
        std::size_t share_;               // of each segment
        bool let_down_ = false;           // by the last touch, into the lowest
    };

    [[nodiscard]] state open(eviction_capacity capacity) const { return state{*this, capacity}; }
};

static_assert(eviction_policy<slru>);

}}} // namespace kvcache::eviction
