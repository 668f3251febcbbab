// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/adapters/replay/next_uses.hpp>
#include <kvcache/adapters/replay/prefill_work.hpp>
#include <kvcache/adapters/replay/prefix_request.hpp>
#include <kvcache/adapters/replay/replay_counts.hpp>
#include <kvcache/core/contract.hpp>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <set>
#include <span>
#include <tuple>
#include <unordered_map>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The maximum of block hits over all eviction policies, with knowledge of the future (Belady's MIN). At the end of a
/// request it evicts the blocks whose next use is furthest away, deeper ones first among equals, the new blocks
/// included; blocks never used again do not stay. The next use of a block is never later than that of its children,
/// so leaves are evicted before their parents, and with blocks of one size the rule is optimal.
///
/// Cost: O(log capacity) per block; about 120 bytes per block of capacity.
class prefix_clairvoyant {
public:
    prefix_clairvoyant(std::size_t capacity, prefill_work work) : capacity_(capacity), work_(work) {}

    /// Replays one request; `next` holds the time of the next use of each block (next_uses::times()). Returns: how
    /// many of its blocks were present.
    std::size_t run(const prefix_request& request, std::span<const std::uint32_t> next) {
        expects(next.size() == request.blocks.size(), "each block of a request has its next use");
        std::size_t hits = 0;
        while (hits < request.blocks.size() && present_.contains(request.blocks[hits]))
            ++hits;
        work_.count(counts_, request, hits);
        for (std::size_t depth = 0; depth < next.size(); ++depth) {
            const std::uint64_t key = request.blocks[depth];
            const auto at = present_.find(key);
            if (at != present_.end())
                order_.erase({at->second, depth, key});
            if (next[depth] == next_uses::never) {
                if (at != present_.end())
                    present_.erase(at);
                continue;
            }
            order_.insert({next[depth], depth, key});
            present_.insert_or_assign(key, next[depth]);
        }
        while (present_.size() > capacity_) {
            const auto farthest = std::prev(order_.end());
            present_.erase(std::get<2>(*farthest));
            order_.erase(farthest);
        }
        return hits;
    }

    [[nodiscard]] const replay_counts& counts() const noexcept { return counts_; }

private:
    using rank = std::tuple<std::uint32_t, std::size_t, std::uint64_t>; // next use, depth, key

    std::size_t capacity_;
    prefill_work work_;
    std::set<rank> order_;
    std::unordered_map<std::uint64_t, std::uint32_t> present_; // the next use of each block
    replay_counts counts_;
};

}} // namespace kvcache
