// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/greedy_dual.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Ranks an entry by the time that its next hit is expected to save, per byte. Each hit ranks it anew. A hit saves the
/// entry's cost, provided that its parent is present, so depth as such does not raise the rank. The probability of a
/// hit is learned from the fate of entries with equally many uses, and age lowers the rank as in gdsf. The entry of
/// lowest rank is evicted. An entry that is not evictable is ranked anew, as if it had just been used; an entry with
/// children is skipped.
///
///     rank = clock + probability of a hit after so many uses * cost / bytes
///
/// The caller gives the cost, in seconds on its own machine. Cherkasova's greedy dual size frequency (HP Labs 1998)
/// with the reuse learned per class as in "KVCache cache in the wild", USENIX ATC 2025, and the cost as in Marconi,
/// MLSys 2025.
struct cost_aware {
    using role = eviction_role;

    /// The value of each entry, and the probabilities of a hit. Cost: O(1) each. 5 bytes a slot; with its rank 25.
    class worth {
    public:
        explicit worth(std::size_t slots) : savings_(slots), uses_(slots) { seen_.fill({1.0, 1.0}); }

        void admit(slot_id slot, const eviction_entry& newcomer) {
            uses_[index_of(slot)] = 1;
            savings_[index_of(slot)] =
                static_cast<float>(newcomer.cost / static_cast<double>(std::max<std::size_t>(newcomer.bytes, 1)));
        }

        void touch(slot_id slot) {
            std::uint8_t& uses = uses_[index_of(slot)];
            learn(uses, 1.0, 0.0);
            uses = static_cast<std::uint8_t>(std::min(uses + 1, 255));
        }

        void evict(slot_id slot) { learn(uses_[index_of(slot)], 0.0, 1.0); }

        [[nodiscard]] double operator()(slot_id slot) const {
            return chance_of_hit(uses_[index_of(slot)]) * static_cast<double>(savings_[index_of(slot)]);
        }

        /// The probability that an entry with so many uses is used again before it is evicted.
        [[nodiscard]] double chance_of_hit(std::uint32_t uses) const {
            const outcomes& seen = seen_[group(uses)];
            return seen.hits / (seen.hits + seen.evictions);
        }

    private:
        struct outcomes {
            double hits = 1.0;
            double evictions = 1.0;
        };

        // Groups: 1, 2, 3, 4 to 7, 8 to 15 ... uses.
        [[nodiscard]] static std::size_t group(std::uint32_t uses) {
            return uses < 4 ? uses - 1 : static_cast<std::size_t>(std::bit_width(uses));
        }

        void learn(std::uint32_t uses, double hits, double evictions) {
            outcomes& seen = seen_[group(uses)];
            seen.hits += hits;
            seen.evictions += evictions;
            if (seen.hits + seen.evictions > 4096.0) { // older outcomes decay
                seen.hits *= 0.5;
                seen.evictions = std::max(0.5 * seen.evictions, 1.0);
            }
        }

        std::vector<float> savings_; // seconds a byte
        std::vector<std::uint8_t> uses_;
        std::array<outcomes, 9> seen_ = {}; // by group of uses
    };

    using state = greedy_dual<worth>;
    [[nodiscard]] state open(eviction_capacity capacity) const { return state(capacity.slots); }
};

static_assert(eviction_policy<cost_aware>);

}}} // namespace kvcache::eviction
