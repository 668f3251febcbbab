// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/eviction/chain_follower.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/object_follower.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <variant>

namespace kvcache::inline KVCACHE_ABI {

/// The entry leaves that the policy of most hits of late would let go: arc or s3_fifo for entries that stand alone, for
/// chains also lru or reuse_forecast. Which one has most, shadows of the cache say: for chains over a sample of the
/// keys, for the others over all of them, and what the leader's shadow has let go leaves first. Before anything is
/// learned it is lru, and for entries that stand alone arc; in caches of few slots it is always lru.
///
///     chained:  chain_follower, one order by use and one by arrival, from which each finds its victim
///     alone:    object_follower, who is outside each shadow
///
/// Who lets the leader decide is an expert follower (Herbster and Warmuth, "Tracking the best expert", 1998; ACME, Ari
/// et al. 2002, for caches). docs/replay.md has its hit ratios.
struct follow_leader {
    using role = eviction_role;
    std::size_t ghosts_a_slot = 4;  ///< Of chains.
    std::size_t contest_from = 256; ///< Slots from which on the policies are compared, at least 4.
    class state;
    [[nodiscard]] state open(eviction_room room) const;
};

/// Cost: O(1) each; victim amortised, while a fixed share of the entries may leave. The followers say their bytes.
class follow_leader::state {
public:
    state(const follow_leader& policy, eviction_room room) : follower_(opened(policy, room)) {}

    void announce(const entry& newcomer) {
        std::visit([&](auto& one) { one.announce(newcomer); }, follower_);
    }
    void admit(slot_id slot, const entry& newcomer) {
        std::visit([&](auto& one) { one.admit(slot, newcomer); }, follower_);
    }
    void touch(slot_id slot) {
        std::visit([&](auto& one) { one.touch(slot); }, follower_);
    }
    void settle(slot_id slot) {
        std::visit([&](auto& one) { one.settle(slot); }, follower_);
    }
    void erase(slot_id slot) {
        std::visit([&](auto& one) { one.erase(slot); }, follower_);
    }
    void evict(slot_id slot) {
        std::visit([&](auto& one) { kvcache::evict(one, slot); }, follower_);
    }
    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& may_leave) {
        return std::visit([&](auto& one) { return one.victim(may_leave); }, follower_);
    }

private:
    using followers = std::variant<chain_follower, object_follower>;

    [[nodiscard]] static followers opened(const follow_leader& policy, eviction_room room) {
        const bool followed = room.slots >= policy.contest_from;
        if (room.chained)
            return followers(std::in_place_type<chain_follower>, room, policy.ghosts_a_slot,
                             followed ? std::min<std::size_t>(room.slots / 4, 4096) : 0);
        return followers(std::in_place_type<object_follower>, room, followed);
    }

    followers follower_;
};

inline follow_leader::state follow_leader::open(eviction_room room) const {
    return state{*this, room};
}

static_assert(eviction_policy<follow_leader>);

} // namespace kvcache
