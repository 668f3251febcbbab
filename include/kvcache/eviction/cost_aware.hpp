// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
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
    class state;
    [[nodiscard]] state open(eviction_capacity room) const;
};

/// Cost: O(log n) each; victim amortized, while a fixed fraction of the entries is evictable. 25 bytes a slot.
class cost_aware::state {
public:
    explicit state(std::size_t slots) : ranks_(slots), savings_(slots), uses_(slots) { seen_.fill({1.0, 1.0}); }

    void admit(slot_id slot, const eviction_entry& newcomer) {
        expects(!ranks_.contains(slot), "an entry is admitted once");
        uses_[index_of(slot)] = 1;
        savings_[index_of(slot)] =
            static_cast<float>(newcomer.cost / static_cast<double>(std::max<std::size_t>(newcomer.bytes, 1)));
        ranks_.rank(slot, worth(slot));
    }

    void touch(slot_id slot) {
        expects(ranks_.contains(slot), "a touched entry was admitted");
        std::uint8_t& uses = uses_[index_of(slot)];
        learn(uses, 1.0, 0.0);
        uses = static_cast<std::uint8_t>(std::min(uses + 1, 255));
        ranks_.rank(slot, worth(slot));
    }

    void on_released(slot_id slot) {
        expects(ranks_.contains(slot), "a released entry was admitted");
        ranks_.rank(slot, worth(slot));
    }

    void on_child_added(slot_id slot) {
        expects(ranks_.contains(slot), "an entry that gains a child was admitted");
        ranks_.on_child_added(slot);
    }
    void on_last_child_removed(slot_id slot) {
        expects(ranks_.contains(slot), "an entry that lost its last child was admitted");
        ranks_.on_last_child_removed(slot);
    }

    void erase(slot_id slot) {
        expects(ranks_.contains(slot), "an erased entry was admitted");
        ranks_.remove(slot);
    }

    void evict(slot_id slot) {
        expects(ranks_.contains(slot), "an evicted entry was admitted");
        learn(uses_[index_of(slot)], 0.0, 1.0);
        ranks_.evict(slot);
    }

    /// The probability that an entry with so many uses is used again before it is evicted.
    [[nodiscard]] double chance_of_hit(std::uint32_t uses) const {
        const outcomes& seen = seen_[group(uses)];
        return seen.hits / (seen.hits + seen.leaves);
    }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& is_evictable) {
        return ranks_.victim(is_evictable, [this](slot_id slot) { return worth(slot); });
    }

private:
    struct outcomes {
        double hits = 1.0;
        double leaves = 1.0;
    };

    // Groups: 1, 2, 3, 4 to 7, 8 to 15 ... uses.
    [[nodiscard]] static std::size_t group(std::uint32_t uses) {
        return uses < 4 ? uses - 1 : static_cast<std::size_t>(std::bit_width(uses));
    }

    void learn(std::uint32_t uses, double hits, double leaves) {
        outcomes& seen = seen_[group(uses)];
        seen.hits += hits;
        seen.leaves += leaves;
        if (seen.hits + seen.leaves > 4096.0) { // older outcomes decay
            seen.hits *= 0.5;
            seen.leaves = std::max(0.5 * seen.leaves, 1.0);
        }
    }

    [[nodiscard]] double worth(slot_id slot) const {
        return chance_of_hit(uses_[index_of(slot)]) * static_cast<double>(savings_[index_of(slot)]);
    }

    greedy_dual ranks_;
    std::vector<float> savings_; // seconds a byte
    std::vector<std::uint8_t> uses_;
    std::array<outcomes, 9> seen_ = {}; // by group of uses
};

inline cost_aware::state cost_aware::open(eviction_capacity room) const {
    return state{room.slots};
}

static_assert(eviction_policy<cost_aware>);

}}} // namespace kvcache::eviction
