// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/mixed_bits.hpp>
#include <kvcache/eviction/concept.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// What a policy would keep: its state beside the keys of the entries that would be present, without their bytes.
/// Entries are not held and do not continue one another here. Each may bear a mark of its owner's, who hears of it when
/// the entry leaves.
///
/// Cost: a look-up and the policy's work a use. 28 bytes a slot beside the policy's own; all of it is had at
/// construction.
template <eviction_policy Policy>
class shadow_cache {
public:
    static constexpr std::uint32_t no_mark = 0xffffffffu;

    shadow_cache(const Policy& policy, eviction_room room)
        : state_(policy.open(room)),
          entries_(room.slots),
          next_(room.slots),
          marks_(room.slots, no_mark),
          chains_(std::max<std::size_t>(room.slots, 1), none),
          room_(room.bytes) {
        for (std::uint32_t slot = static_cast<std::uint32_t>(room.slots); slot > 0; --slot)
            next_[slot - 1] = std::exchange(free_, slot - 1);
    }

    /// Entries that would be present.
    [[nodiscard]] std::size_t size() const noexcept { return size_; }

    /// An entry is used. Returns: whether it would have been present. It is afterwards, if it fits at all. `gone(mark)`
    /// is called for those that leave for it and have a mark.
    template <class Gone>
    bool use(const entry& used, Gone&& gone) {
        if (const std::uint32_t slot = find(used.key); slot != none) {
            state_.touch(slot_id{slot});
            return true;
        }
        if (used.bytes > room_)
            return false;
        announce(state_, used);
        while (free_ == none || used.bytes > room_ - bytes_)
            if (!make_room(gone))
                return false;
        const std::uint32_t slot = std::exchange(free_, next_[free_]);
        std::uint32_t& chain = chain_of(used.key);
        entries_[slot] = {used.key, used.bytes};
        next_[slot] = std::exchange(chain, slot);
        bytes_ += used.bytes;
        ++size_;
        state_.admit(slot_id{slot}, used);
        return false;
    }

    /// Marks an entry, or with no_mark takes its mark away. Returns: whether it would be present.
    bool mark(std::uint64_t key, std::uint32_t with) {
        const std::uint32_t slot = find(key);
        if (slot != none)
            marks_[slot] = with;
        return slot != none;
    }

    /// The last holder of an entry lets go; it need not be present.
    void settle(std::uint64_t key) {
        if (const std::uint32_t slot = find(key); slot != none)
            kvcache::settle(state_, slot_id{slot});
    }

private:
    static constexpr std::uint32_t none = 0xffffffffu;
    struct known {
        std::uint64_t key = 0;
        std::size_t bytes = 0;
    };

    [[nodiscard]] std::uint32_t& chain_of(std::uint64_t key) {
        return chains_[((mixed_bits(key) & 0xffffffffu) * chains_.size()) >> 32];
    }

    [[nodiscard]] std::uint32_t find(std::uint64_t key) {
        std::uint32_t slot = chain_of(key);
        while (slot != none && entries_[slot].key != key)
            slot = next_[slot];
        return slot;
    }

    template <class Gone>
    bool make_room(Gone&& gone) {
        const std::optional<slot_id> victim = state_.victim([](slot_id) { return true; });
        if (!victim)
            return false;
        evict(state_, *victim);
        const std::uint32_t slot = index_of(*victim);
        std::uint32_t* link = &chain_of(entries_[slot].key);
        while (*link != slot)
            link = &next_[*link];
        *link = next_[slot];
        bytes_ -= entries_[slot].bytes;
        --size_;
        if (const std::uint32_t mark = std::exchange(marks_[slot], no_mark); mark != no_mark)
            gone(mark);
        next_[slot] = std::exchange(free_, slot);
        return true;
    }

    opened_by<Policy, eviction_room> state_;
    std::vector<known> entries_;        // by slot
    std::vector<std::uint32_t> next_;   // in its chain, or among the free
    std::vector<std::uint32_t> marks_;  // by slot
    std::vector<std::uint32_t> chains_; // by hash
    std::uint32_t free_ = none;
    std::size_t size_ = 0;
    std::size_t bytes_ = 0;
    std::size_t room_;
};

} // namespace kvcache
