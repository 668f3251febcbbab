// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/platform/machine.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// The record of an evicted entry.
struct ghost {
    std::size_t bytes = 0;  ///< Size of the entry, rounded up to the list's grain.
    std::uint32_t mark = 0; ///< A value set by the policy.
};

/// Keys of evicted entries; the oldest is forgotten first. A ring of nodes in order of eviction, chained by hash. A key
/// is identified by 31 bits of its hash, apart from the bits that choose its chain, so about one lookup in 10^9
/// mistakes a new key for a ghost. Holes left by `take` are closed when the ring is full.
///
///     push -> [ newest . . hole . oldest ] -> forgotten        chains_[hash] -> node -> node
///
/// Cost: O(1) amortized. At most 16 bytes a ghost, 21 with marks in addition to bytes, all allocated at construction.
class ghost_list {
public:
    enum class marks { none, kept, instead_of_bytes };

    /// Capacity for `most` ghosts of `most_bytes` in total. Sizes are exact if `most_bytes` is below 4 GiB, and rounded
    /// up to a coarser grain otherwise.
    ghost_list(std::size_t most, std::size_t most_bytes, marks kind = marks::none)
        : nodes_(most == 0 ? 0 : most + most / 8 + 1),
          marks_(kind == marks::kept ? nodes_.size() : 0),
          marks_only_(kind == marks::instead_of_bytes),
          chains_(most / 2 + most / 16 + 1),
          most_(most),
          grain_(std::bit_width(most_bytes) > 32 ? static_cast<int>(std::bit_width(most_bytes)) - 32 : 0) {
        for (std::uint32_t chain = 0; chain < chains_.size(); ++chain)
            chains_[chain] = last | chain;
    }

    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_ << grain_; }

    /// Adds a key. A full list forgets its oldest key. A key that is already in the list stays there too; `take` then
    /// returns the newer of the two first.
    void push(std::uint64_t key, ghost what) noexcept {
        if (most_ == 0)
            return;
        if (size_ == most_)
            pop();
        if (used_ == nodes_.size())
            close_holes();
        const std::uint32_t at = (first_ + used_++) % capacity();
        const std::uint64_t hash = mix64(key);
        std::uint32_t& chain = chain_of(hash);
        nodes_[at] = {print(hash), marks_only_ ? what.mark : units(what.bytes), chain};
        if (!marks_.empty())
            marks_[at] = what.mark;
        chain = at;
        bytes_ += marks_only_ ? 0 : nodes_[at].units;
        ++size_;
    }

    /// Prefetches the chain in which a key is looked up.
    KVCACHE_INLINE void prefetch(std::uint64_t key) const noexcept {
        kvcache::prefetch(chains_.data(), chain_at(mix64(key)));
    }

    /// Returns whether the key is in the list.
    [[nodiscard]] bool contains(std::uint64_t key) const noexcept {
        const std::uint64_t hash = mix64(key);
        for (std::uint32_t at = chains_[chain_at(hash)]; (at & last) == 0; at = nodes_[at].next)
            if (nodes_[at].print == print(hash))
                return true;
        return false;
    }

    /// Removes a key.
    std::optional<ghost> take(std::uint64_t key) noexcept {
        const std::uint64_t hash = mix64(key);
        for (std::uint32_t* link = &chain_of(hash); (*link & last) == 0; link = &nodes_[*link].next) {
            const std::uint32_t at = *link;
            if (nodes_[at].print != print(hash))
                continue;
            *link = nodes_[at].next;
            return remove(at);
        }
        return std::nullopt;
    }

    /// The oldest ghost.
    /// Requires: the list is not empty.
    [[nodiscard]] ghost oldest() noexcept {
        trim();
        return at(first_);
    }

    /// Removes the oldest ghost.
    /// Requires: the list is not empty.
    ghost pop() noexcept {
        trim();
        prefetch_oldest();
        link_to(first_) = nodes_[first_].next;
        return remove(first_);
    }

private:
    static constexpr std::uint32_t last = 0x80000000u; // ends a chain; the low bits are its number
    static constexpr std::uint32_t hole = 0;           // no print is zero
    struct node {
        std::uint32_t print = hole;
        std::uint32_t units = 0;   // bytes, in grains; or the mark
        std::uint32_t next = last; // in its chain
    };

    [[nodiscard]] static std::uint32_t print(std::uint64_t hash) noexcept {
        return static_cast<std::uint32_t>(hash >> 32) | 1u;
    }

    [[nodiscard]] std::uint32_t capacity() const noexcept { return static_cast<std::uint32_t>(nodes_.size()); }
    [[nodiscard]] std::uint32_t units(std::size_t bytes) const noexcept {
        return static_cast<std::uint32_t>((bytes + (std::size_t{1} << grain_) - 1) >> grain_);
    }
    [[nodiscard]] ghost at(std::uint32_t index) const noexcept {
        if (marks_only_)
            return {.mark = nodes_[index].units};
        return {std::size_t{nodes_[index].units} << grain_, marks_.empty() ? 0 : marks_[index]};
    }

    // Skips the holes before the oldest ghost.
    void trim() noexcept {
        for (; used_ > 0 && nodes_[first_].print == hole; --used_)
            first_ = (first_ + 1) % capacity();
    }

    // Uses the low half of the hash: the high half is the print.
    [[nodiscard]] std::size_t chain_at(std::uint64_t hash) const noexcept {
        return static_cast<std::size_t>(((hash & 0xffffffffu) * chains_.size()) >> 32);
    }
    [[nodiscard]] std::uint32_t& chain_of(std::uint64_t hash) noexcept { return chains_[chain_at(hash)]; }

    // Prefetches what `pop` will read for ghosts 8 and 16 places ahead: a chain's next node or head.
    KVCACHE_INLINE void prefetch_oldest() const noexcept {
        if (used_ <= 16)
            return;
        const std::uint32_t far = nodes_[(first_ + 16) % capacity()].next,
                            near = nodes_[(first_ + 8) % capacity()].next;
        if ((far & last) == 0)
            kvcache::prefetch(nodes_.data(), far);
        else
            kvcache::prefetch(chains_.data(), far & ~last);
        if ((near & last) != 0 && (chains_[near & ~last] & last) == 0)
            kvcache::prefetch(nodes_.data(), chains_[near & ~last]);
    }

    // The link that points to a node. The end of a chain holds the chain's number, which gives its head.
    [[nodiscard]] std::uint32_t& link_to(std::uint32_t index) noexcept {
        std::uint32_t end = nodes_[index].next;
        while ((end & last) == 0)
            end = nodes_[end].next;
        std::uint32_t* link = &chains_[end & ~last];
        while (*link != index)
            link = &nodes_[*link].next;
        return *link;
    }

    ghost remove(std::uint32_t index) noexcept {
        const ghost removed = at(index);
        bytes_ -= marks_only_ ? 0 : nodes_[index].units;
        nodes_[index] = {};
        --size_;
        return removed;
    }

    void close_holes() noexcept {
        std::uint32_t kept = 0;
        for (std::uint32_t n = 0; n < used_; ++n) {
            const std::uint32_t from = (first_ + n) % capacity(), to = (first_ + kept) % capacity();
            if (nodes_[from].print == hole)
                continue;
            if (from != to) {
                link_to(from) = to;
                nodes_[to] = nodes_[from];
                nodes_[from] = {};
                if (!marks_.empty())
                    marks_[to] = marks_[from];
            }
            ++kept;
        }
        used_ = kept;
    }

    std::vector<node> nodes_;          // a ring of `used_` from `first_` on
    std::vector<std::uint32_t> marks_; // parallel to nodes_
    bool marks_only_;
    std::vector<std::uint32_t> chains_; // by hash
    std::size_t most_;
    std::size_t size_ = 0;
    std::uint32_t used_ = 0;
    std::size_t bytes_ = 0; // in grains
    std::uint32_t first_ = 0;
    int grain_;
};

/// Doubly linked lists of slots, each slot in at most one: rings of 32-bit links through a sentinel for each list.
///
///     front: newest <-> ... <-> oldest :back        newer() leads to the front
///
/// Cost: O(1) each. 8 bytes a slot, and 8 a list.
class slot_lists {
public:
    slot_lists(std::size_t slots, std::size_t queues)
        : links_(slots + queues), slots_(static_cast<std::uint32_t>(slots)) {
        for (std::size_t q = slots; q < links_.size(); ++q)
            links_[q] = {static_cast<std::uint32_t>(q), static_cast<std::uint32_t>(q)};
    }

    [[nodiscard]] std::size_t slots() const noexcept { return slots_; }

    /// Returns whether the slot is in a list.
    [[nodiscard]] bool contains(slot_id slot) const noexcept { return links_[index_of(slot)].newer != nowhere; }
    [[nodiscard]] bool empty(std::uint32_t queue) const noexcept {
        return links_[slots_ + queue].newer == slots_ + queue;
    }

    /// The ends of a list.
    /// Requires: it is not empty.
    [[nodiscard]] slot_id front(std::uint32_t queue) const noexcept { return slot_id{links_[slots_ + queue].older}; }
    [[nodiscard]] slot_id back(std::uint32_t queue) const noexcept { return slot_id{links_[slots_ + queue].newer}; }

    /// The neighbor toward the front, and toward the back. Past either end `ends` is true of the result.
    [[nodiscard]] slot_id newer(slot_id slot) const noexcept { return slot_id{links_[index_of(slot)].newer}; }
    [[nodiscard]] slot_id older(slot_id slot) const noexcept { return slot_id{links_[index_of(slot)].older}; }
    [[nodiscard]] bool ends(slot_id slot) const noexcept { return index_of(slot) >= slots_; }

    /// Prefetches a slot's links, and those of its neighbors.
    KVCACHE_INLINE void prefetch(slot_id slot) const noexcept {
        kvcache::prefetch_to_write(links_.data(), index_of(slot));
    }
    KVCACHE_INLINE void prefetch_neighbours(slot_id slot) const noexcept {
        const auto [newer, older] = links_[index_of(slot)];
        kvcache::prefetch_to_write(links_.data(), newer);
        kvcache::prefetch_to_write(links_.data(), older);
    }

    /// Requires: the slot is in no list.
    void push_front(slot_id slot, std::uint32_t queue) noexcept {
        const std::uint32_t end = slots_ + queue, second = links_[end].older, at = index_of(slot);
        links_[at] = {end, second};
        links_[second].newer = at;
        links_[end].older = at;
    }

    /// Requires: the slot is in a list.
    void remove(slot_id slot) noexcept {
        link& here = links_[index_of(slot)];
        links_[here.newer].older = here.older;
        links_[here.older].newer = here.newer;
        here = {};
    }

    void move_to_front(slot_id slot, std::uint32_t queue) noexcept {
        remove(slot);
        push_front(slot, queue);
    }

    /// The oldest evictable slot of a list. Slots before it move to the front: a slot that is not evictable is in use.
    /// Cost: amortized O(1), while a fixed fraction of the slots is evictable.
    template <class IsEvictable>
    [[nodiscard]] std::optional<slot_id> oldest(std::uint32_t queue, IsEvictable&& is_evictable) {
        return oldest(queue, is_evictable, slots_);
    }

    /// The same among the oldest `most` slots. A later search continues where this one ended.
    template <class IsEvictable>
    [[nodiscard]] std::optional<slot_id> oldest(std::uint32_t queue, IsEvictable&& is_evictable, std::size_t most) {
        if (empty(queue))
            return std::nullopt;
        const slot_id last = front(queue);
        for (bool all = false; !all && most > 0; --most) {
            const slot_id slot = back(queue);
            if (is_evictable(slot))
                return slot;
            all = slot == last;
            move_to_front(slot, queue);
        }
        return std::nullopt;
    }

private:
    static constexpr std::uint32_t nowhere = 0xffffffffu;
    struct link { // a sentinel's `older` is the front, its `newer` the back
        std::uint32_t newer = nowhere;
        std::uint32_t older = nowhere;
    };

    std::vector<link> links_; // the slots, then the sentinels
    std::uint32_t slots_;
};

/// A buffer of the last few touches, for a policy that moves touched entries. Each touch waits while its memory is
/// prefetched, and touches are applied in order. Before any other operation the policy applies the remaining ones.
///
///     touch -> [ fetch: its own links .  .  reach: its neighbors' .  .  apply ]
///
/// Cost: O(1) each. 64 bytes.
class touch_buffer {
public:
    /// Adds a touch of a slot of `lists` that has a record in `entries`. Prefetches the memory of both, and of the
    /// slots next to it once half the ring is newer. `apply(slot)` applies the oldest touch once the ring is full.
    template <class Entries, class Apply>
    void add(slot_id slot, const slot_lists& lists, Entries& entries, Apply&& apply) {
        if (end_ - begin_ == ring_.size())
            apply(ring_[begin_++ % ring_.size()]);
        lists.prefetch(slot);
        prefetch_to_write(entries.data(), index_of(slot));
        ring_[end_++ % ring_.size()] = slot;
        if (end_ - begin_ > ring_.size() / 2)
            lists.prefetch_neighbours(ring_[(end_ - 1 - ring_.size() / 2) % ring_.size()]);
    }

    /// Applies all waiting touches.
    template <class Apply>
    void apply_all(Apply&& apply) {
        while (begin_ != end_)
            apply(ring_[begin_++ % ring_.size()]);
    }

private:
    std::array<slot_id, 16> ring_ = {};
    std::uint32_t begin_ = 0, end_ = 0; // number of touches applied, and added
};

}}} // namespace kvcache::eviction
