// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/adapters/replay/next_uses.hpp>
#include <kvcache/adapters/replay/object_access.hpp>
#include <kvcache/adapters/replay/replay_counts.hpp>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <set>
#include <unordered_map>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

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
        ++counts_.requests;
        ++counts_.accesses;
        counts_.hits += hit;
        counts_.tokens += access.bytes;
        counts_.hit_tokens += hit ? access.bytes : 0;
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

}} // namespace kvcache
