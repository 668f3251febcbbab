// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/eviction/concept.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "workload.hpp"

namespace bench {

/// A prefix cache without page contents: it replays a workload of prompts through an eviction policy.
///
/// A hit is the longest prefix of a request's blocks that is present. The policy receives the same calls as in a
/// cache: hits are touched tail first; each missing block is reported with on_miss, evicts a victim if necessary, and
/// is admitted after its parent; when the request ends, on_released is called for all its blocks, tail first. A block
/// is evictable while the current request does not use it and it has no child. A request longer than the capacity
/// keeps its first blocks: all other blocks have been evicted for it by then, and trimming the request would remove the
/// same last blocks, the only ones without a child.
///
/// Cost: a hash look-up and the policy's work per block; 40 bytes per block of capacity, plus the policy.
template <kvcache::eviction_policy Policy>
class prefix_replay {
public:
    /// Requires: capacity, in blocks, is 1 to 2^32 - 2.
    prefix_replay(const Policy& policy, std::size_t capacity, std::size_t block_bytes, prefill_work work)
        : state_(policy.open({.slots = capacity, .bytes = capacity * block_bytes})),
          block_bytes_(block_bytes),
          work_(work),
          blocks_(capacity) {
        kvcache::expects(capacity > 0 && capacity < no_slot, "a replay has room for 1 to 2^32 - 2 blocks");
        free_.reserve(capacity);
        for (std::size_t slot = capacity; slot > 0; --slot)
            free_.push_back(static_cast<std::uint32_t>(slot - 1));
    }

    /// Replays one request. Requires: no block occurs twice in it, and a block is always preceded by the same blocks.
    /// Returns: how many of its blocks were present.
    std::size_t run(const prefix_request& request) {
        ++now_;
        chain_.clear();
        for (const std::uint64_t key : request.blocks) {
            const auto found = slots_.find(key);
            if (found == slots_.end())
                break;
            kvcache::expects(blocks_[found->second].parent == (chain_.empty() ? no_slot : chain_.back()),
                             "a block follows the same blocks each time");
            blocks_[found->second].held = now_;
            chain_.push_back(found->second);
        }
        const std::size_t hits = chain_.size();
        work_.count(counts_, request, hits);
        for (std::size_t i = hits; i > 0; --i)
            state_.touch(kvcache::slot_id{chain_[i - 1]});
        while (chain_.size() < request.blocks.size() && admit(request, chain_.size())) {
        }
        for (std::size_t i = chain_.size(); i > 0; --i)
            on_released(state_, kvcache::slot_id{chain_[i - 1]});
        return hits;
    }

    [[nodiscard]] const replay_counts& counts() const noexcept { return counts_; }

    /// Number of blocks present.
    [[nodiscard]] std::size_t size() const noexcept { return slots_.size(); }
    [[nodiscard]] bool contains(std::uint64_t block) const { return slots_.contains(block); }

private:
    static constexpr std::uint32_t no_slot = 0xffffffffu;
    static constexpr double seconds_per_token = 1e-4; // a nominal machine: only the ratios matter

    struct resident {
        std::uint64_t key = 0;
        std::uint64_t held = 0; // the number of the request that last used it
        std::uint32_t parent = no_slot;
        std::uint32_t children = 0;
    };

    // Returns false if everything present is in use by this request, or the policy names no victim.
    bool admit(const prefix_request& request, std::size_t depth) {
        if (free_.empty() && chain_.size() == blocks_.size())
            return false;
        const std::uint32_t parent = chain_.empty() ? no_slot : chain_.back();
        const kvcache::eviction_entry newcomer{.key = request.blocks[depth],
                                               .bytes = block_bytes_,
                                               .cost = work_.of_block(request, depth) * seconds_per_token,
                                               .parent = chain_.empty() ? std::nullopt
                                                                        : std::optional(kvcache::slot_id{parent}),
                                               .depth = static_cast<std::uint32_t>(depth),
                                               .length = static_cast<std::uint32_t>(request.blocks.size())};
        on_miss(state_, newcomer);
        if (free_.empty() && !make_room())
            return false;
        const std::uint32_t slot = free_.back();
        const bool fresh = slots_.emplace(newcomer.key, slot).second;
        kvcache::expects(fresh, "no block comes twice in a request, and no block is present without its parent");
        free_.pop_back();
        blocks_[slot] = {newcomer.key, now_, parent, 0};
        state_.admit(kvcache::slot_id{slot}, newcomer);
        if (parent != no_slot && ++blocks_[parent].children == 1)
            on_child_added(state_, kvcache::slot_id{parent});
        chain_.push_back(slot);
        return true;
    }

    bool make_room() {
        const auto is_evictable = [this](kvcache::slot_id slot) {
            const resident& candidate = blocks_[kvcache::index_of(slot)];
            return candidate.held != now_ && candidate.children == 0;
        };
        const std::optional<kvcache::slot_id> victim = state_.victim(is_evictable);
        if (!victim)
            return false;
        kvcache::expects(is_evictable(*victim), "a victim may leave");
        evict(state_, *victim);
        const resident& gone = blocks_[kvcache::index_of(*victim)];
        slots_.erase(gone.key);
        if (gone.parent != no_slot && --blocks_[gone.parent].children == 0)
            on_last_child_removed(state_, kvcache::slot_id{gone.parent});
        free_.push_back(kvcache::index_of(*victim));
        return true;
    }

    decltype(std::declval<const Policy&>().open(kvcache::eviction_capacity{})) state_;
    std::size_t block_bytes_;
    prefill_work work_;
    std::vector<resident> blocks_; // indexed by slot
    std::unordered_map<std::uint64_t, std::uint32_t> slots_;
    std::vector<std::uint32_t> free_;
    std::vector<std::uint32_t> chain_; // the slots of the current request
    std::uint64_t now_ = 0;
    replay_counts counts_;
};

} // namespace bench
