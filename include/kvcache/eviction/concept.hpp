// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/role.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace kvcache::inline KVCACHE_ABI {

/// What may be present at once. A policy that shares its room out (a tenth for newcomers) does so in bytes, which for
/// entries of one size is the same as counting them.
struct eviction_room {
    std::size_t slots = 0; ///< Entries: every slot_id is below.
    std::size_t bytes = 0; ///< Their bytes together.
};

/// What an eviction policy is told of a newcomer.
struct entry {
    std::uint64_t key = 0;              ///< Names the content, so that a ghost recognises it when it returns.
    std::size_t bytes = 0;              ///< What it takes.
    double cost = 0.0;                  ///< What a hit saves, in seconds, given that its parent is present.
    std::optional<slot_id> parent = {}; ///< The entry that it continues.
    std::uint32_t depth = 0;            ///< Entries before it in its chain.
    std::uint32_t length = 0;           ///< Entries of the request that brought it, itself included; 0 if unknown.
};

/// May this slot leave now? No while somebody holds it or an entry that continues it is present. It stands for any
/// callable of this form: a `victim` is a template over its argument.
struct leave_check {
    bool operator()(slot_id slot) const;
};

/// The working state of an eviction policy. `admit` ranks a newcomer, `touch` says it was used, `erase` forgets it
/// (withdrawn), `victim` names the next to leave among those for which its argument answers true; it takes nothing
/// away. What has no memory to admit throws bad_alloc and has changed nothing; the others do not throw.
///
/// A state may offer more, called through the functions below: `announce(entry)` before victims are asked for and the
/// newcomer is admitted, `evict(slot)` instead of `erase` for a victim, so that a ghost of it may stay, and
/// `settle(slot)` when its last holder lets go: it was in use until now, which is no use more. Whoever frees a chain
/// settles it tail first, so that children leave before parents. `cover(slot)` says that an entry continues this one
/// from now on, and `uncover(slot)` that none does any more: in between it may not leave and is not erased, and a state
/// that searches need not meet it.
template <class S>
concept eviction_state = requires(S s, slot_id slot, const entry& newcomer, const leave_check& may_leave) {
    s.admit(slot, newcomer);
    s.touch(slot);
    s.erase(slot);
    { s.victim(may_leave) } -> std::same_as<std::optional<slot_id>>;
};

/// Which entry leaves when room is needed.
template <class P>
concept eviction_policy = plays<P, eviction_role> && requires(const P p, eviction_room room) {
    p.open(room);
} && eviction_state<opened_by<P, eviction_room>>;

/// Says who comes, before room is made for it.
template <eviction_state S>
void announce(S& state, const entry& newcomer) {
    if constexpr (requires { state.announce(newcomer); })
        state.announce(newcomer);
}

/// A victim leaves.
template <eviction_state S>
void evict(S& state, slot_id slot) {
    if constexpr (requires { state.evict(slot); })
        state.evict(slot);
    else
        state.erase(slot);
}

/// The last holder of an entry lets go.
template <eviction_state S>
void settle(S& state, slot_id slot) {
    if constexpr (requires { state.settle(slot); })
        state.settle(slot);
}

/// The first entry that continues this one has come.
template <eviction_state S>
void cover(S& state, slot_id slot) {
    if constexpr (requires { state.cover(slot); })
        state.cover(slot);
}

/// The last entry that continued this one has left.
template <eviction_state S>
void uncover(S& state, slot_id slot) {
    if constexpr (requires { state.uncover(slot); })
        state.uncover(slot);
}

} // namespace kvcache
