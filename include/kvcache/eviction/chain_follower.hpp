// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/core/prefetch.hpp>
#include <kvcache/eviction/arc.hpp>
#include <kvcache/eviction/arrival_queues.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/ghost_pair.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/eviction/reuse_ages.hpp>
#include <kvcache/eviction/reuse_forecast.hpp>
#include <kvcache/eviction/rounded_bytes.hpp>
#include <kvcache/eviction/s3_fifo.hpp>
#include <kvcache/eviction/shadow_contest.hpp>
#include <kvcache/eviction/slot_queues.hpp>
#include <kvcache/eviction/touch_ring.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// follow_leader's working state for entries that continue one another. They are in two orders at once, by use and by
/// arrival, from which each of four policies finds its victim at any time; which of them has most hits, shadows over a
/// sample of the keys say.
///
///     once   1, 2, 3..4, 5..8, 9 or more uses [ newest ... oldest ] -+- lru: the oldest
///     again  1, 2, 3..4, 5..8, 9 or more uses [ newest ... oldest ] -+- arc: the oldest of once or again, by a target
///                                                                    '- reuse_forecast: the least worth at its age
///     small  [ newest ... oldest ] -> used twice -> main [ newest ... oldest ] -- s3_fifo
///
/// Cost: O(1) each; victim amortised, while a fixed share of the entries may leave. 32 bytes a slot, 16 a ghost; the
/// shadows take at most as much as five ghosts a slot, and 1.3 MB.
class chain_follower {
public:
    /// `sample` slots of each shadow: none, and it is lru.
    chain_follower(eviction_room room, std::size_t ghosts_a_slot, std::size_t sample)
        : recency_(room.slots, 2 * classes),
          arrival_(room.slots, room.bytes),
          entries_(room.slots),
          ghosts_(room.slots * ghosts_a_slot - room.slots * ghosts_a_slot / 4, room.slots * ghosts_a_slot / 4,
                  room.bytes),
          contest_(room, sample),
          period_(static_cast<std::uint32_t>(std::clamp<std::size_t>(room.slots, 2000, 1u << 24))) {}

    void announce(const entry& newcomer) {
        if (announced_ == newcomer.key)
            return;
        announced_ = newcomer.key;
        ghost_ = ghosts_.take(newcomer, present_, present_once_);
    }

    void admit(slot_id slot, const entry& newcomer) {
        apply_touches();
        expects(!recency_.contains(slot), "an entry is admitted once");
        announce(newcomer);
        known& one = entries_[index_of(slot)];
        one = {.key = newcomer.key, .bytes = rounded_bytes(newcomer.bytes), .marks = arrival_queues::fresh};
        if (ghost_) {
            const std::uint32_t c = ghost_->mark & ghost_class;
            one.uses = static_cast<std::uint8_t>(c == 0 ? 1 : (1u << (c - 1)) + 1); // the least of the class
            ages_.use(c, clock_ - (ghost_->mark & ~ghost_bits));
            if (ghost_->recent)
                one.marks |= again;
            if ((ghost_->mark & ghost_main) == 0 && 10 * ghost_->since < 9 * present_)
                one.marks |= arrival_queues::main;
        }
        announced_.reset();
        ghost_.reset();
        count(one, 1);
        arrival_.arrive(slot, one.marks, one.bytes.count());
        use(slot);
    }

    void touch(slot_id slot) {
        expects(recency_.contains(slot), "a touched entry was admitted");
        touches_.add(
            slot,
            [this](slot_id one) {
                recency_.prefetch(one);
                prefetch_to_write(entries_.data(), index_of(one));
            },
            [this](slot_id one) { recency_.prefetch_neighbours(one); }, [this](slot_id one) { use_again(one); });
    }

    void settle(slot_id slot) {
        apply_touches();
        expects(recency_.contains(slot), "an entry that settles was admitted");
        known& one = entries_[index_of(slot)];
        one.used = clock_;
        recency_.move_to_front(slot, queue_of(one));
        arrival_.settle(slot, one.marks);
        contest_.settle(one.key);
    }

    void erase(slot_id slot) {
        apply_touches();
        expects(recency_.contains(slot), "an erased entry was admitted");
        const known& one = entries_[index_of(slot)];
        count(one, -1);
        recency_.remove(slot);
        arrival_.leave(slot, one.marks, one.bytes.count());
    }

    void evict(slot_id slot) {
        apply_touches();
        const known& one = entries_[index_of(slot)];
        ghosts_.push(one.key,
                     (one.used & ~ghost_bits) | class_of(one) |
                         ((one.marks & arrival_queues::main) != 0 ? ghost_main : 0),
                     (one.marks & again) != 0);
        erase(slot);
    }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& may_leave) {
        apply_touches();
        if (leader_ == by_s3_fifo)
            return arrival_.first(
                may_leave, [this](slot_id slot) -> std::uint8_t& { return entries_[index_of(slot)].marks; },
                [this](slot_id slot) { return entries_[index_of(slot)].bytes.count(); });
        for (const std::size_t most_asked : {patience, recency_.slots()})
            if (const auto found = by_use(may_leave, most_asked))
                return found;
        return std::nullopt;
    }

private:
    enum leaders : std::size_t { by_arc, by_s3_fifo, by_lru, by_forecast };
    static constexpr std::uint32_t classes = 5;
    static constexpr std::uint32_t ghost_class = 7, ghost_main = 8, ghost_bits = 15;
    static constexpr std::uint8_t again = 4;    // beside the marks of arrival_queues
    static constexpr std::size_t patience = 64; // entries of a queue that are asked about before it is passed over
    struct known {
        std::uint64_t key = 0;
        std::uint32_t used = 0; // when, on the clock
        rounded_bytes bytes;
        std::uint8_t uses = 0; // up to 255
        std::uint8_t marks = 0;
    };

    // 1, 2, 3 to 4, 5 to 8 and more uses.
    [[nodiscard]] static std::uint32_t class_of(const known& one) noexcept {
        return std::min<std::uint32_t>(static_cast<std::uint32_t>(std::bit_width(std::uint32_t{one.uses} - 1u)),
                                       classes - 1);
    }
    [[nodiscard]] static std::uint32_t queue_of(const known& one) noexcept {
        return class_of(one) + ((one.marks & again) != 0 ? classes : 0);
    }

    void count(const known& one, int by) {
        const auto more = static_cast<std::size_t>(by); // modulo 2^64
        present_ += more;
        if ((one.marks & again) != 0)
            return;
        present_once_ += more;
        once_bytes_ += by * one.bytes.count();
    }

    void apply_touches() {
        touches_.apply_all([this](slot_id slot) { use_again(slot); });
    }

    void use_again(slot_id slot) {
        known& one = entries_[index_of(slot)];
        ages_.use(class_of(one), clock_ - one.used);
        recency_.remove(slot);
        count(one, -1);
        one.marks |= again;
        count(one, 1);
        arrival_queues::touch(one.marks);
        use(slot);
    }

    void use(slot_id slot) {
        known& one = entries_[index_of(slot)];
        one.uses = static_cast<std::uint8_t>(std::min(one.uses + 1, 255));
        one.used = ++clock_;
        ages_.begin(class_of(one));
        recency_.push_front(slot, queue_of(one));
        if (contest_.samples(one.key)) {
            contest_.use({.key = one.key, .bytes = static_cast<std::size_t>(one.bytes.count())});
            leader_ = contest_.leader(leader_);
        }
        if (++since_learned_ >= next_) { // soon at first, then once in a cache's worth of uses
            ages_.learn(1.0 - 0.1 * static_cast<double>(since_learned_) / static_cast<double>(period_));
            next_ = std::min(2 * next_, period_);
            since_learned_ = 0;
        }
    }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> by_use(MayLeave&& may_leave, std::size_t most_asked) {
        if (leader_ == by_forecast)
            return least(may_leave, most_asked);
        if (leader_ == by_lru)
            return oldest(0, 2 * classes, may_leave, most_asked);
        const double target = ghosts_.target();
        const bool tie = once_bytes_ == target && ghost_ && ghost_->recent && ghost_->again;
        const bool from_once = once_bytes_ > target || tie;
        const std::uint32_t first = from_once ? 0 : classes, other = classes - first;
        const auto found = oldest(first, first + classes, may_leave, most_asked);
        return found ? found : oldest(other, other + classes, may_leave, most_asked);
    }

    // The oldest that may leave of some queues. Who may not leave keeps its place: a parent is to follow what continues
    // it.
    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> oldest(std::uint32_t first, std::uint32_t last, MayLeave&& may_leave,
                                                std::size_t most_asked) {
        std::optional<slot_id> found;
        std::uint32_t age = 0;
        for (std::uint32_t q = first; q < last; ++q) {
            slot_id slot = recency_.back(q);
            std::size_t asked = 0;
            while (!recency_.ends(slot) && asked++ < most_asked && !may_leave(slot))
                slot = recency_.newer(slot);
            if (recency_.ends(slot) || asked > most_asked)
                continue;
            const std::uint32_t own_age = clock_ - entries_[index_of(slot)].used;
            if (!found || own_age > age) {
                found = slot;
                age = own_age;
            }
        }
        return found;
    }

    // Who is worth the least among the oldest and the newest of each queue that may leave: the newest where all return
    // after one age, as in a loop.
    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> least(MayLeave&& may_leave, std::size_t most_asked) {
        std::optional<slot_id> found;
        double worth = 0.0;
        std::uint32_t age = 0;
        for (std::uint32_t end = 0; end < 4 * classes; ++end) { // of each queue the back and the front
            const std::uint32_t q = end / 2;
            slot_id slot = end % 2 == 0 ? recency_.back(q) : recency_.front(q);
            std::size_t asked = 0;
            while (!recency_.ends(slot) && asked++ < most_asked && !may_leave(slot))
                slot = end % 2 == 0 ? recency_.newer(slot) : recency_.older(slot);
            if (recency_.ends(slot) || asked > most_asked)
                continue;
            const known& one = entries_[index_of(slot)];
            const std::uint32_t own_age = clock_ - one.used;
            const double own = ages_.worth(q % classes, own_age) / one.bytes.count();
            if (!found || own < worth || (own == worth && own_age > age)) {
                found = slot;
                worth = own;
                age = own_age;
            }
        }
        return found;
    }

    slot_queues recency_;
    arrival_queues arrival_;
    std::vector<known> entries_;
    touch_ring touches_;
    ghost_pair ghosts_;
    reuse_ages<classes> ages_;
    shadow_contest<arc, s3_fifo, lru, reuse_forecast> contest_; // in the order of leaders
    std::size_t leader_ = by_lru;
    std::size_t present_ = 0, present_once_ = 0;
    double once_bytes_ = 0.0;
    std::optional<std::uint64_t> announced_;
    std::optional<ghost_pair::returned> ghost_; // the announced newcomer's
    std::uint32_t clock_ = 0;                   // uses of all entries, round the clock
    std::uint32_t since_learned_ = 0;
    std::uint32_t period_;
    std::uint32_t next_ = 2000;
};

} // namespace kvcache
