// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/eviction/arc.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/s3_fifo.hpp>
#include <kvcache/eviction/shadow_contest.hpp>
#include <kvcache/eviction/slot_queues.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// follow_leader's working state for entries that stand alone: those leave first that the leader's shadow has let go,
/// and of these the ones that no shadow has any more. After a change of leader the entries become its shadow's as they
/// are used.
///
///     outside arc's shadow      [ newest ... oldest ] -+- of the leader's those that are in both, then the oldest
///     outside s3_fifo's shadow  [ newest ... oldest ] -'
///     by use                    [ newest ... oldest ] -- where those may not leave
///
/// Cost: two look-ups, and arc's and s3_fifo's work; victim amortised, while a fixed share of the entries may leave. 40
/// bytes a slot, and those of the shadows.
class object_follower {
public:
    /// Shadows of all keys, or none, and it is lru.
    object_follower(eviction_room room, bool followed)
        : recency_(room.slots, 1),
          outside_{slot_queues(room.slots, 1), slot_queues(room.slots, 1)},
          entries_(room.slots),
          contest_(room, followed ? room.slots : 0),
          followed_(followed) {}

    void announce(const entry& newcomer) {
        if (announced_ == newcomer.key)
            return;
        announced_ = newcomer.key;
        use(newcomer);
    }

    void admit(slot_id slot, const entry& newcomer) {
        expects(!recency_.contains(slot), "an entry is admitted once");
        announce(newcomer);
        announced_.reset();
        entries_[index_of(slot)] = {newcomer.key, newcomer.bytes};
        recency_.push_front(slot, 0);
        if (!followed_)
            return;
        const auto inside = contest_.mark(newcomer.key, index_of(slot));
        for (std::size_t p = 0; p < policies; ++p)
            if (!inside[p])
                leave(p, slot);
    }

    void touch(slot_id slot) {
        expects(recency_.contains(slot), "a touched entry was admitted");
        const known& one = entries_[index_of(slot)];
        use({.key = one.key, .bytes = one.bytes});
        recency_.move_to_front(slot, 0);
        if (!is_outside(slot))
            return;
        const auto inside = contest_.mark(one.key, index_of(slot));
        for (std::size_t p = 0; p < policies; ++p)
            if (inside[p])
                enter(p, slot);
    }

    void settle(slot_id slot) {
        expects(recency_.contains(slot), "an entry that settles was admitted");
        recency_.move_to_front(slot, 0);
        contest_.settle(entries_[index_of(slot)].key);
    }

    void erase(slot_id slot) {
        expects(recency_.contains(slot), "an erased entry was admitted");
        recency_.remove(slot);
        contest_.mark(entries_[index_of(slot)].key, shadow_cache<arc>::no_mark);
        for (std::size_t p = 0; p < policies; ++p)
            enter(p, slot);
    }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& may_leave) {
        slot_queues& first = outside_[leader_];
        const slot_queues& other = outside_[1 - leader_];
        if (const auto nobodys = first_of(first, [&](slot_id slot) { return other.contains(slot) && may_leave(slot); }))
            return nobodys;
        if (const auto not_the_leaders = first_of(first, may_leave))
            return not_the_leaders;
        return recency_.oldest(0, may_leave);
    }

private:
    static constexpr std::size_t policies = 2;
    static constexpr std::size_t patience = 32; // entries outside that are asked about
    struct known {
        std::uint64_t key = 0;
        std::size_t bytes = 0;
    };

    [[nodiscard]] bool is_outside(slot_id slot) const noexcept {
        return outside_[0].contains(slot) || outside_[1].contains(slot);
    }

    void use(const entry& used) {
        contest_.use(used, [&](std::size_t p, std::uint32_t slot) { leave(p, slot_id{slot}); });
        // Whoever leads next lets go of all that are outside its shadow: a tenth of them would be used again.
        leader_ = contest_.leader(leader_, [&](std::size_t p) { return 0.1 * static_cast<double>(count_outside_[p]); });
    }

    // An entry leaves a shadow, or enters it if it is not there.
    void leave(std::size_t p, slot_id slot) {
        outside_[p].push_front(slot, 0);
        ++count_outside_[p];
    }
    void enter(std::size_t p, slot_id slot) {
        if (!outside_[p].contains(slot))
            return;
        outside_[p].remove(slot);
        --count_outside_[p];
    }

    template <class MayLeave>
    [[nodiscard]] static std::optional<slot_id> first_of(const slot_queues& queue, MayLeave&& may_leave) {
        slot_id slot = queue.back(0);
        for (std::size_t asked = 0; !queue.ends(slot) && asked < patience; ++asked, slot = queue.newer(slot))
            if (may_leave(slot))
                return slot;
        return std::nullopt;
    }

    slot_queues recency_;
    std::array<slot_queues, policies> outside_; // who is in the cache and not in a policy's shadow
    std::array<std::size_t, policies> count_outside_ = {};
    std::vector<known> entries_;
    shadow_contest<arc, s3_fifo> contest_;
    std::size_t leader_ = 0;
    std::optional<std::uint64_t> announced_;
    bool followed_;
};

} // namespace kvcache
