// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/role.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The capacity of a cache. A policy that partitions its capacity (a tenth for new entries) does so in bytes; for
/// entries of one size this equals counting them.
struct eviction_capacity {
    std::size_t slots = 0; ///< Maximum number of entries; every slot_id is below.
    std::size_t bytes = 0; ///< Maximum total bytes of the entries.
};

/// Attributes of a new entry, for the eviction policy.
struct eviction_entry {
    std::uint64_t key = 0;              ///< Hash of the content, by which a ghost recognizes a returning entry.
    std::size_t bytes = 0;              ///< Size of the entry.
    double cost = 0.0;                  ///< Seconds that a hit saves, provided that the parent is present.
    std::optional<slot_id> parent = {}; ///< The entry that this one continues.
    std::uint32_t depth = 0;            ///< Number of entries before it in its chain.
    std::uint32_t length = 0;           ///< Entries of the request that added it, itself included; 0 if unknown.
};

/// Returns whether a slot is evictable now: it is unreferenced and has no child in the cache. A placeholder for any
/// callable of this form: `victim` is a template over its argument.
struct evictable_check {
    bool operator()(slot_id slot) const;
};

/// The working state of an eviction policy. `admit` adds a new entry, `touch` records a use, `erase` removes an entry
/// (withdrawn). `victim` returns the next entry to evict among those for which its argument is true; it does not remove
/// it. `admit` throws bad_alloc if it lacks memory and has then changed nothing; the other functions do not throw.
///
/// Optional functions are called through the free functions below. `on_miss(entry)` precedes the calls of `victim` that
/// make room for a new entry and its `admit`. `evict(slot)` replaces `erase` for a victim, so that the policy can keep
/// a ghost. `on_released(slot)`: the last reference is gone; this is not a hit. A caller that releases a chain does so
/// tail first, so that children are evicted before parents. `on_child_added(slot)`: the entry gained its first child.
/// `on_last_child_removed(slot)`: it lost its last child. In between it is not evictable and is not erased, and a
/// policy that searches can skip it.
template <class S>
concept eviction_state = requires(S s, slot_id slot, const eviction_entry& newcomer,
                                  const evictable_check& is_evictable) {
    s.admit(slot, newcomer);
    s.touch(slot);
    s.erase(slot);
    { s.victim(is_evictable) } -> std::same_as<std::optional<slot_id>>;
};

/// A policy that selects the entry to evict when space is needed.
template <class P>
concept eviction_policy = plays<P, eviction_role> && requires(const P p, eviction_capacity capacity) {
    p.open(capacity);
} && eviction_state<opened_by<P, eviction_capacity>>;

/// Announces a new entry before space is made for it.
template <eviction_state S>
void on_miss(S& state, const eviction_entry& newcomer) {
    if constexpr (requires { state.on_miss(newcomer); })
        state.on_miss(newcomer);
}

/// Evicts a victim.
template <eviction_state S>
void evict(S& state, slot_id slot) {
    if constexpr (requires { state.evict(slot); })
        state.evict(slot);
    else
        state.erase(slot);
}

/// The last reference to an entry was dropped.
template <eviction_state S>
void on_released(S& state, slot_id slot) {
    if constexpr (requires { state.on_released(slot); })
        state.on_released(slot);
}

/// The entry gained its first child.
template <eviction_state S>
void on_child_added(S& state, slot_id slot) {
    if constexpr (requires { state.on_child_added(slot); })
        state.on_child_added(slot);
}

/// The entry lost its last child.
template <eviction_state S>
void on_last_child_removed(S& state, slot_id slot) {
    if constexpr (requires { state.on_last_child_removed(slot); })
        state.on_last_child_removed(slot);
}

#if KVCACHE_CONTRACTS
/// A state that also checks its caller: an entry is admitted once, and is used and removed only after that. Without
/// contract checks it is the state itself.
template <eviction_state S>
class checked_eviction {
public:
    template <eviction_policy P>
    checked_eviction(const P& policy, eviction_capacity capacity)
        : state_(policy.open(capacity)), present_(capacity.slots) {}

    void on_miss(const eviction_entry& newcomer) { kvcache::on_miss(state_, newcomer); }

    void admit(slot_id slot, const eviction_entry& newcomer) {
        expects(!present_[index_of(slot)], "an entry is admitted once");
        state_.admit(slot, newcomer);
        present_[index_of(slot)] = true;
    }

    void touch(slot_id slot) {
        expects(present_[index_of(slot)], "a touched entry was admitted");
        state_.touch(slot);
    }

    void on_released(slot_id slot) {
        expects(present_[index_of(slot)], "a released entry was admitted");
        kvcache::on_released(state_, slot);
    }

    void on_child_added(slot_id slot) {
        expects(present_[index_of(slot)], "an entry that gains a child was admitted");
        kvcache::on_child_added(state_, slot);
    }

    void on_last_child_removed(slot_id slot) {
        expects(present_[index_of(slot)], "an entry that lost its last child was admitted");
        kvcache::on_last_child_removed(state_, slot);
    }

    void erase(slot_id slot) {
        expects(present_[index_of(slot)], "an erased entry was admitted");
        state_.erase(slot);
        present_[index_of(slot)] = false;
    }

    void evict(slot_id slot) {
        expects(present_[index_of(slot)], "an evicted entry was admitted");
        kvcache::evict(state_, slot);
        present_[index_of(slot)] = false;
    }

    template <class IsEvictable>
    [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
        return state_.victim(is_evictable);
    }

private:
    S state_;
    std::vector<bool> present_;
};
#else
/// Without contract checks it is the state itself.
template <eviction_state S>
using checked_eviction = S;
#endif

/// Opens a policy whose callers are checked, in builds with contract checks.
template <eviction_policy P>
[[nodiscard]] auto open_checked(const P& policy, eviction_capacity capacity) {
#if KVCACHE_CONTRACTS
    return checked_eviction<opened_by<P, eviction_capacity>>(policy, capacity);
#else
    return policy.open(capacity);
#endif
}

}} // namespace kvcache
