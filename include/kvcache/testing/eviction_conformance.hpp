// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/eviction/concept.hpp>
#include <kvcache/testing/violations.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace testing {

namespace detail {

// An eviction state, a duplicate with the same history, and a plain model of the entries that are present.
template <eviction_policy Policy>
class eviction_trial {
public:
    eviction_trial(const Policy& policy, std::size_t slots, violations& broken)
        : state_(open_checked(policy, {.slots = slots, .bytes = slots * 256})),
          duplicate_(open_checked(policy, {.slots = slots, .bytes = slots * 256})),
          parents_(slots),
          depths_(slots),
          children_(slots),
          present_(slots, false),
          broken_(broken) {}

    void run(choices& choose, std::size_t rounds, bool names_victims) {
        for (; rounds > 0; --rounds) {
            const slot_id slot{static_cast<std::uint32_t>(choose.below(present_.size()))};
            if (!present_[index_of(slot)]) {
                admit(slot, choose);
            } else if (choose.one_in(8)) {
                if (childless(slot))
                    erase(slot);
            } else if (choose.one_in(4)) {
                both([&](auto& state) { on_released(state, slot); });
            } else {
                both([&](auto& state) { state.touch(slot); });
            }
            if (choose.one_in(3)) {
                std::vector<bool> held(present_.size());
                const std::size_t share = choose.below(4);
                for (std::size_t i = 0; i < held.size(); ++i)
                    held[i] = choose.below(4) < share;
                if (const auto gone = victim(held, names_victims); gone && choose.one_in(4))
                    erase(*gone);
                else if (gone && choose.one_in(2))
                    evict(*gone);
            }
        }
        drain(names_victims);
    }

    void admit(slot_id slot, choices& choose) {
        eviction_entry newcomer{
            choose.below(40), 64 + choose.below(4) * 64, 1.0 + static_cast<double>(choose.below(8)), {}};
        const slot_id parent{static_cast<std::uint32_t>(choose.below(present_.size()))};
        if (present_[index_of(parent)] && choose.one_in(2)) {
            newcomer.parent = parent;
            newcomer.depth = depths_[index_of(parent)] + 1;
        }
        if (choose.one_in(2))
            newcomer.length = newcomer.depth + 1 + static_cast<std::uint32_t>(choose.below(4));
        parents_[index_of(slot)] = newcomer.parent;
        depths_[index_of(slot)] = newcomer.depth;
        if (choose.one_in(4)) { // a miss whose entry is not admitted
            const eviction_entry other{choose.below(40), 64, 1.0, {}};
            both([&](auto& state) { on_miss(state, other); });
        }
        if (!choose.one_in(4)) {
            both([&](auto& state) { on_miss(state, newcomer); });
        }
        both([&](auto& state) { state.admit(slot, newcomer); });
        present_[index_of(slot)] = true;
        if (newcomer.parent && ++children_[index_of(parent)] == 1) {
            both([&](auto& state) { on_child_added(state, parent); });
        }
    }

    // Evicts every entry once, children before parents.
    void drain(bool names_victims) {
        std::size_t left = 0;
        for (const bool one : present_)
            left += one;
        const std::vector<bool> none_protected(present_.size(), false);
        for (; left > 0 && names_victims; --left) {
            const auto gone = victim(none_protected, names_victims);
            check_property(broken_, gone.has_value(), "every admitted entry leaves when all may");
            if (!gone || !present_[index_of(*gone)])
                return;
            evict(*gone);
        }
        if (left == 0)
            check_property(broken_, !victim(none_protected, false), "an empty policy has no victim");
    }

private:
    template <class Act>
    void both(const Act& act) {
        act(state_);
        act(duplicate_);
    }

    [[nodiscard]] bool childless(slot_id slot) const { return children_[index_of(slot)] == 0; }

    void on_removed(slot_id slot) {
        present_[index_of(slot)] = false;
        const std::optional<slot_id> parent = parents_[index_of(slot)];
        if (parent && --children_[index_of(*parent)] == 0) {
            both([&](auto& state) { on_last_child_removed(state, *parent); });
        }
    }

    void erase(slot_id slot) {
        both([&](auto& state) { state.erase(slot); });
        on_removed(slot);
    }

    void evict(slot_id slot) {
        both([&](auto& state) { kvcache::evict(state, slot); });
        on_removed(slot);
    }

    std::optional<slot_id> victim(const std::vector<bool>& held, bool names_victims) {
        bool strangers = false, any = false;
        std::size_t asked = 0;
        const auto allowed = [&](slot_id slot) {
            return index_of(slot) < present_.size() && present_[index_of(slot)] && !held[index_of(slot)] &&
                   childless(slot);
        };
        const auto is_evictable = [&](slot_id slot) {
            strangers = strangers || index_of(slot) >= present_.size() || !present_[index_of(slot)];
            ++asked;
            return allowed(slot);
        };
        for (std::size_t i = 0; i < present_.size(); ++i)
            any = any || allowed(slot_id{static_cast<std::uint32_t>(i)});

        const std::optional<slot_id> found = state_.victim(is_evictable);
        check_property(broken_, !strangers, "only entries that are present are asked about");
        check_property(broken_, asked <= 16 * present_.size(), "a search asks about an entry a few times at most");
        check_property(broken_, !found || (index_of(*found) < present_.size() && present_[index_of(*found)]),
                       "a victim was admitted and has not left");
        check_property(broken_, !found || allowed(*found), "a victim is evictable");
        check_property(broken_, found || !any || !names_victims, "there is a victim while an entry is evictable");
        check_property(broken_, duplicate_.victim(is_evictable) == found, "the same history has the same victim");
        return found && allowed(*found) ? found : std::nullopt;
    }

    using checked_state = decltype(open_checked(std::declval<const Policy&>(), eviction_capacity{}));
    checked_state state_, duplicate_;
    std::vector<std::optional<slot_id>> parents_;
    std::vector<std::uint32_t> depths_;
    std::vector<std::uint32_t> children_;
    std::vector<bool> present_;
    violations& broken_;
};

// Returns whether a policy ever names a victim; a valid policy need not.
template <eviction_policy Policy>
[[nodiscard]] bool names_victims(const Policy& policy) {
    auto state = policy.open({.slots = 1, .bytes = 256});
    state.admit(slot_id{0}, {.key = 1, .bytes = 64, .cost = 1.0});
    const auto always = [](slot_id) { return true; };
    return std::optional<slot_id>(state.victim(always)).has_value();
}

} // namespace detail

/// Tests the required properties of an eviction policy over random histories, with entries in use and entries that are
/// children of others.
template <eviction_policy Policy>
[[nodiscard]] violations eviction_conformance(const Policy& policy, std::uint64_t seed) {
    violations broken;
    detail::choices choose(seed);
    const bool names = detail::names_victims(policy);
    for (const std::size_t slots : {1u, 2u, 3u, 8u, 50u}) {
        detail::eviction_trial<Policy> one(policy, slots, broken);
        one.drain(names);
        for (const std::size_t rounds : {1u, 10u, 100u, 600u})
            one.run(choose, rounds, names);
    }
    return broken;
}

}}} // namespace kvcache::testing
