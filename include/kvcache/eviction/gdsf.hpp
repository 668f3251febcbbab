// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/greedy_dual.hpp>

#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Greedy dual size frequency: an entry's value is its uses times its cost, per byte, added to a clock that advances to
/// the rank of each evicted entry. The entry of lowest rank is evicted. An entry that is not evictable is ranked anew,
/// as if it had just arrived with its uses; an entry with children keeps its rank and is skipped.
///
///     rank = clock + uses * cost / bytes
///
/// For equal costs and sizes this is LFU with dynamic aging. Cherkasova, "Improving WWW proxies performance with greedy
/// dual size frequency caching policy", HP Labs 1998.
struct gdsf {
    using role = eviction_role;
    class state;
    [[nodiscard]] state open(eviction_capacity room) const;
};

/// Cost: O(log n) each; victim amortized, while a fixed fraction of the entries is evictable. 32 bytes a slot.
class gdsf::state {
public:
    explicit state(std::size_t slots) : ranks_(slots), uses_(slots), costs_(slots), bytes_(slots) {}

    void admit(slot_id slot, const eviction_entry& newcomer) {
        expects(!ranks_.contains(slot), "an entry is admitted once");
        const std::uint32_t at = index_of(slot);
        uses_[at] = 1;
        costs_[at] = static_cast<float>(newcomer.cost);
        bytes_[at] = static_cast<float>(newcomer.bytes);
        ranks_.rank(slot, worth(slot));
    }

    void touch(slot_id slot) {
        expects(ranks_.contains(slot), "a touched entry was admitted");
        ++uses_[index_of(slot)];
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
        ranks_.evict(slot);
    }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& is_evictable) {
        return ranks_.victim(is_evictable, [this](slot_id slot) { return worth(slot); });
    }

private:
    [[nodiscard]] double worth(slot_id slot) const {
        const std::uint32_t at = index_of(slot);
        return static_cast<double>(uses_[at]) * static_cast<double>(costs_[at]) / static_cast<double>(bytes_[at]);
    }

    greedy_dual ranks_;
    std::vector<std::uint32_t> uses_;
    std::vector<float> costs_;
    std::vector<float> bytes_;
};

inline gdsf::state gdsf::open(eviction_capacity room) const {
    return state{room.slots};
}

static_assert(eviction_policy<gdsf>);

}}} // namespace kvcache::eviction
