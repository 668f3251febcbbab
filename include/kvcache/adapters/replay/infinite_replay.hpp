// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/adapters/replay/object_access.hpp>
#include <kvcache/adapters/replay/prefill_work.hpp>
#include <kvcache/adapters/replay/prefix_request.hpp>
#include <kvcache/adapters/replay/replay_counts.hpp>

#include <cstddef>
#include <cstdint>
#include <unordered_set>

namespace kvcache { inline namespace KVCACHE_ABI {

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
        ++counts_.requests;
        ++counts_.accesses;
        counts_.hits += hit;
        counts_.tokens += access.bytes;
        counts_.hit_tokens += hit ? access.bytes : 0;
        return hit;
    }

    [[nodiscard]] const replay_counts& counts() const noexcept { return counts_; }

private:
    prefill_work work_;
    std::unordered_set<std::uint64_t> present_;
    replay_counts counts_;
};

}} // namespace kvcache
