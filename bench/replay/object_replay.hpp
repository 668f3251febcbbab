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

/// A cache of independent objects, without their contents. A hit touches the object, which keeps the size it was
/// admitted with. A miss is reported with on_miss, evicts victims until the object fits, and admits it. An object
/// larger than the whole cache is skipped, and the policy is not told.
///
/// Cost: a hash look-up and the policy's work per access; 40 bytes per object of capacity, plus the policy.
template <kvcache::eviction_policy Policy>
class object_replay {
public:
    /// Requires: capacity, in bytes, is at least 1; `objects`, the maximum number of objects present, is 1 to 2^32 -
    /// 2.
    object_replay(const Policy& policy, std::uint64_t capacity, std::size_t objects)
        : state_(policy.open({.slots = objects, .bytes = capacity})), capacity_(capacity), objects_(objects) {
        kvcache::expects(capacity > 0, "a replay has room for a byte");
        kvcache::expects(objects > 0 && objects < 0xffffffffu, "a replay has room for 1 to 2^32 - 2 objects");
        free_.reserve(objects);
        for (std::size_t slot = objects; slot > 0; --slot)
            free_.push_back(static_cast<std::uint32_t>(slot - 1));
    }

    /// Replays one access. Returns: whether the object was present.
    bool run(const object_access& access) {
        const auto found = slots_.find(access.key);
        const bool hit = found != slots_.end();
        counts_.add(access, hit);
        if (hit)
            state_.touch(kvcache::slot_id{found->second});
        else if (access.bytes <= capacity_)
            admit(access);
        return hit;
    }

    [[nodiscard]] const replay_counts& counts() const noexcept { return counts_; }

    /// Number of objects present; bytes() is their total size.
    [[nodiscard]] std::size_t size() const noexcept { return slots_.size(); }
    [[nodiscard]] std::uint64_t bytes() const noexcept { return used_; }

private:
    struct object {
        std::uint64_t key = 0;
        std::uint64_t bytes = 0;
    };

    void admit(const object_access& access) {
        // Objects have no recompute cost: each is worth one access, whatever its size.
        const kvcache::eviction_entry newcomer{
            .key = access.key, .bytes = access.bytes, .cost = 1.0, .parent = std::nullopt, .length = 1};
        on_miss(state_, newcomer);
        while (free_.empty() || access.bytes > capacity_ - used_)
            if (!make_room())
                return;
        const std::uint32_t slot = free_.back();
        free_.pop_back();
        objects_[slot] = {access.key, access.bytes};
        slots_.emplace(access.key, slot);
        used_ += access.bytes;
        state_.admit(kvcache::slot_id{slot}, newcomer);
    }

    bool make_room() {
        const std::optional<kvcache::slot_id> victim = state_.victim([](kvcache::slot_id) { return true; });
        if (!victim)
            return false;
        evict(state_, *victim);
        const object& gone = objects_[kvcache::index_of(*victim)];
        used_ -= gone.bytes;
        slots_.erase(gone.key);
        free_.push_back(kvcache::index_of(*victim));
        return true;
    }

    decltype(std::declval<const Policy&>().open(kvcache::eviction_capacity{})) state_;
    std::uint64_t capacity_;
    std::uint64_t used_ = 0;
    std::vector<object> objects_; // indexed by slot
    std::unordered_map<std::uint64_t, std::uint32_t> slots_;
    std::vector<std::uint32_t> free_;
    replay_counts counts_;
};

} // namespace bench
