// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/eviction/concept.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// A min-heap of slots with changeable ranks; ties go to the slot that has had its rank longest. A binary heap with the
/// position of each slot. A slot can be set aside: it keeps its rank but is not in the heap.
///
/// Cost: O(log n) each. 20 bytes a slot.
class slot_heap {
public:
    explicit slot_heap(std::size_t slots) : heap_(slots), places_(slots, nowhere), ranks_(slots), turns_(slots) {}

    /// The number of slots that are not set aside.
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] bool contains(slot_id slot) const noexcept { return places_[index_of(slot)] != nowhere; }
    [[nodiscard]] double rank(slot_id slot) const noexcept { return ranks_[index_of(slot)]; }

    /// The slot at a place of the heap, the lowest at 0. The order of the others is unspecified, but each slot that is
    /// not set aside occurs once. Requires: place < size().
    [[nodiscard]] slot_id at(std::size_t place) const noexcept { return slot_id{heap_[place]}; }

    /// Returns whether `a` comes out before `b`.
    [[nodiscard]] bool before(slot_id a, slot_id b) const noexcept { return before(index_of(a), index_of(b)); }

    /// Adds a slot, or changes its rank.
    void rank(slot_id slot, double rank) noexcept {
        const std::uint32_t at = index_of(slot);
        ranks_[at] = rank;
        turns_[at] = turn_++;
        if (places_[at] == nowhere)
            insert(at);
        else if (places_[at] != aside)
            sink(rise(places_[at]));
    }

    /// Requires: the slot is in the heap.
    void remove(slot_id slot) noexcept {
        if (places_[index_of(slot)] != aside)
            extract(index_of(slot));
        places_[index_of(slot)] = nowhere;
    }

    /// Requires: the slot is in the heap.
    void set_aside(slot_id slot) noexcept {
        if (places_[index_of(slot)] != aside)
            extract(index_of(slot));
        places_[index_of(slot)] = aside;
    }

    /// Returns a slot that was set aside to the heap.
    void put_back(slot_id slot) noexcept {
        if (places_[index_of(slot)] == aside)
            insert(index_of(slot));
    }

private:
    static constexpr std::uint32_t nowhere = 0xffffffffu, aside = 0xfffffffeu;

    void insert(std::uint32_t slot) noexcept {
        heap_[size_] = slot;
        places_[slot] = size_;
        rise(size_++);
    }

    void extract(std::uint32_t slot) noexcept {
        const std::uint32_t place = places_[slot];
        swap(place, --size_);
        if (place < size_)
            sink(rise(place));
    }

    // Turns may wrap: `a` is earlier than `b` if `b` is less than 2^31 turns ahead.
    [[nodiscard]] bool before(std::uint32_t a, std::uint32_t b) const noexcept {
        return ranks_[a] < ranks_[b] ||
               (ranks_[a] == ranks_[b] && static_cast<std::int32_t>(turns_[a] - turns_[b]) < 0);
    }

    void swap(std::uint32_t a, std::uint32_t b) noexcept {
        std::swap(heap_[a], heap_[b]);
        places_[heap_[a]] = a;
        places_[heap_[b]] = b;
    }

    std::uint32_t rise(std::uint32_t place) noexcept {
        for (; place > 0 && before(heap_[place], heap_[(place - 1) / 2]); place = (place - 1) / 2)
            swap(place, (place - 1) / 2);
        return place;
    }

    void sink(std::uint32_t place) noexcept {
        for (;;) {
            std::uint32_t least = place;
            for (std::uint32_t child = 2 * place + 1; child <= 2 * place + 2 && child < size_; ++child)
                if (before(heap_[child], heap_[least]))
                    least = child;
            if (least == place)
                return;
            swap(place, least);
            place = least;
        }
    }

    std::vector<std::uint32_t> heap_;   // slots
    std::vector<std::uint32_t> places_; // by slot: index in the heap
    std::vector<double> ranks_;         // by slot
    std::vector<std::uint32_t> turns_;  // by slot: when it got its rank
    std::uint32_t size_ = 0;
    std::uint32_t turn_ = 0;
};

/// The state of a greedy dual policy: entries ranked by the clock plus a value. The entry of lowest rank is evicted,
/// and the clock advances to its rank. A value that is not renewed therefore loses to new entries in time. An entry
/// with children keeps its rank; searches skip it.
///
/// Worth computes the values: worth(slot), after its `admit(slot, newcomer)`, `touch(slot)` and, if it has one,
/// `evict(slot)` were called.
///
/// Cao and Irani, "Cost-aware WWW proxy caching algorithms", USITS 1997.
///
/// Cost: O(log n) each; a search in which the first candidate is evictable O(1). 20 bytes a slot, and those of Worth.
template <class Worth>
class greedy_dual {
public:
    explicit greedy_dual(std::size_t slots) : heap_(slots), worth_(slots) {}

    [[nodiscard]] const Worth& worth() const noexcept { return worth_; }

    void admit(slot_id slot, const eviction_entry& newcomer) {
        worth_.admit(slot, newcomer);
        on_released(slot);
    }

    void touch(slot_id slot) {
        worth_.touch(slot);
        on_released(slot);
    }

    void on_released(slot_id slot) { heap_.rank(slot, clock_ + worth_(slot)); }
    void on_child_added(slot_id slot) { heap_.set_aside(slot); }
    void on_last_child_removed(slot_id slot) { heap_.put_back(slot); }
    void erase(slot_id slot) { heap_.remove(slot); }

    void evict(slot_id slot) {
        if constexpr (requires { worth_.evict(slot); })
            worth_.evict(slot);
        clock_ = heap_.rank(slot);
        heap_.remove(slot);
    }

    /// The evictable slot of lowest rank. A slot that is not evictable is in use: it is ranked anew, as if the clock
    /// stood at its rank.
    template <class IsEvictable>
    [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
        for (std::size_t met = 0; met < heap_.size(); ++met) {
            const slot_id lowest = heap_.at(0);
            if (is_evictable(lowest))
                return lowest;
            heap_.rank(lowest, heap_.rank(lowest) + worth_(lowest));
        }
        // Slots of low value may have been checked repeatedly before one of high value was checked at all.
        std::optional<slot_id> found;
        for (std::size_t place = 0; place < heap_.size(); ++place)
            if (const slot_id slot = heap_.at(place); (!found || heap_.before(slot, *found)) && is_evictable(slot))
                found = slot;
        return found;
    }

private:
    slot_heap heap_;
    Worth worth_;
    double clock_ = 0.0;
};

}}} // namespace kvcache::eviction
