// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <set>
#include <span>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "workload.hpp"

namespace bench {

/// A cache without eviction: the upper bound of reuse. Memory: about 40 bytes per distinct block or object.
class infinite_replay {
public:
    explicit infinite_replay(prefill_work work) : work_(work) {}

    /// Replays one request. Returns: how many of its blocks were present.
    std::size_t run(const prefix_request& request) {
        std::size_t hits = 0;
        while (hits < request.blocks.size() && present_.contains(request.blocks[hits]))
            ++hits;
        present_.insert(request.blocks.begin(), request.blocks.end());
        work_.count(counts_, request, hits);
        return hits;
    }

    /// Replays one access. Returns: whether the object was present.
    bool run(const object_access& access) {
        const bool hit = !present_.insert(access.key).second;
        counts_.add(access, hit);
        return hit;
    }

    [[nodiscard]] const replay_counts& counts() const noexcept { return counts_; }

private:
    prefill_work work_;
    std::unordered_set<std::uint64_t> present_;
    replay_counts counts_;
};

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
        kvcache::expects(next.size() == request.blocks.size(), "each block of a request has its next use");
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

/// A cache of independent objects that evicts the object whose next use is furthest away (Belady). Every miss that
/// fits the capacity is admitted, as with the policies it is compared with. With objects of one size no policy that
/// admits every miss does better; with different sizes it is the customary reference, not a proven bound.
///
/// Cost: O(log objects) per access; about 110 bytes per object present.
class object_clairvoyant {
public:
    explicit object_clairvoyant(std::uint64_t capacity) : capacity_(capacity) {}

    /// Replays one access; `next` is the time of the object's next access (next_uses::times()). Returns: whether it
    /// was present.
    bool run(const object_access& access, std::uint32_t next) {
        const auto at = present_.find(access.key);
        const bool hit = at != present_.end();
        counts_.add(access, hit);
        if (hit) {
            order_.erase({at->second.next, access.key});
            at->second.next = next;
        } else if (access.bytes <= capacity_) {
            while (access.bytes > capacity_ - used_)
                drop_farthest();
            present_.emplace(access.key, object{access.bytes, next});
            used_ += access.bytes;
        } else {
            return false;
        }
        order_.insert({next, access.key});
        return hit;
    }

    [[nodiscard]] const replay_counts& counts() const noexcept { return counts_; }

private:
    struct object {
        std::uint64_t bytes = 0;
        std::uint32_t next = next_uses::never;
    };

    void drop_farthest() {
        const auto farthest = std::prev(order_.end());
        const auto gone = present_.find(farthest->second);
        used_ -= gone->second.bytes;
        present_.erase(gone);
        order_.erase(farthest);
    }

    std::uint64_t capacity_;
    std::uint64_t used_ = 0;
    std::set<std::pair<std::uint32_t, std::uint64_t>> order_; // next use, key
    std::unordered_map<std::uint64_t, object> present_;
    replay_counts counts_;
};

} // namespace bench
