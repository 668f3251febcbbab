// SPDX-License-Identifier: MIT
#pragma once

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

    /// The value of each entry. Cost: O(1) each. 12 bytes a slot; with its rank 32.
    class worth {
    public:
        explicit worth(std::size_t slots) : entries_(slots) {}

        void admit(slot_id slot, const eviction_entry& newcomer) {
            entries_[index_of(slot)] = {1, static_cast<float>(newcomer.cost), static_cast<float>(newcomer.bytes)};
        }
        void touch(slot_id slot) { ++entries_[index_of(slot)].uses; }

        [[nodiscard]] double operator()(slot_id slot) const {
            const auto [uses, cost, bytes] = entries_[index_of(slot)];
            return static_cast<double>(uses) * static_cast<double>(cost) / static_cast<double>(bytes);
        }

    private:
        struct known {
            std::uint32_t uses = 0;
            float cost = 0.0f;
            float bytes = 0.0f;
        };
        std::vector<known> entries_;
    };

    using state = greedy_dual<worth>;
    [[nodiscard]] state open(eviction_capacity capacity) const { return state(capacity.slots); }
};

static_assert(eviction_policy<gdsf>);

}}} // namespace kvcache::eviction
