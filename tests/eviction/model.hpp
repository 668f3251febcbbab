// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/testing/violations.hpp>

#include <algorithm>
#include <list>
#include <map>
#include <set>
#include <vector>

#include <catch2/catch.hpp>

namespace eviction_model {

namespace kv = kvcache;

/// A queue as drawn in the papers, newest first.
using queue = std::list<kv::slot_id>;

/// The oldest evictable entry; entries before it move to the front.
template <class IsEvictable>
std::optional<kv::slot_id> oldest(queue& slots, const IsEvictable& is_evictable) {
    for (std::size_t left = slots.size(); left > 0; --left) {
        if (is_evictable(slots.back()))
            return slots.back();
        slots.splice(slots.begin(), slots, std::prev(slots.end()));
    }
    return std::nullopt;
}

inline bool in(const queue& slots, kv::slot_id slot) {
    return kvcache::ranges::find(slots, slot) != slots.end();
}

inline void to_front(queue& slots, kv::slot_id slot) {
    slots.remove(slot);
    slots.push_front(slot);
}

/// A simple list of ghosts, newest first.
struct ghosts {
    std::list<std::pair<std::uint64_t, std::size_t>> keys; // with their bytes

    [[nodiscard]] std::size_t bytes() const {
        std::size_t sum = 0;
        for (const auto& one : keys)
            sum += one.second;
        return sum;
    }
    bool take(std::uint64_t key) {
        return keys.remove_if([&](const auto& one) { return one.first == key; }) > 0;
    }
};

enum class holders { none, some };

/// The random histories that a policy is driven with.
struct histories {
    std::uint64_t seeds = 40;
    int rounds = 1500;
    std::uint32_t slots = 12;
    holders who = holders::some;
    bool children = false; ///< Entries with children are not evictable, and the policy is told of them.
};

/// Drives a policy and a simple model of it with the calls of a small cache: random requests, and entries that are
/// referenced, released and erased. Both must return the same victims.
template <kv::eviction_policy Policy, class Open>
void same_victims(const Policy& policy, const Open& open_plain, const histories& how = {}) {
    for (std::uint64_t seed = 0; seed < how.seeds; ++seed) {
        INFO("seed " << seed);
        kv::testing::detail::choices choose(seed);
        const bool one_size = seed % 2 == 0;
        const kv::eviction_capacity capacity{.slots = how.slots, .bytes = how.slots * 16 / (one_size ? 2u : 3u)};
        auto state = kv::open_checked(policy, capacity);
        auto plain = open_plain(capacity);
        const auto both = [&](const auto& act) {
            act(state);
            act(plain);
        };
        std::map<std::uint64_t, kv::slot_id> present;
        std::vector<kv::eviction_entry> entries(how.slots);
        std::vector<std::uint32_t> children(how.slots);
        std::vector<kv::slot_id> free;
        for (std::uint32_t slot = 0; slot < how.slots; ++slot)
            free.push_back(kv::slot_id{slot});
        std::size_t bytes = 0;
        const auto anyone = [&] {
            return std::next(present.begin(), static_cast<std::ptrdiff_t>(choose.below(present.size())))->second;
        };
        const auto gone = [&](kv::slot_id slot) {
            present.erase(entries[index_of(slot)].key);
            bytes -= entries[index_of(slot)].bytes;
            free.push_back(slot);
            const auto parent = entries[index_of(slot)].parent;
            if (how.children && parent && --children[index_of(*parent)] == 0)
                both([&](auto& one) { kv::on_last_child_removed(one, *parent); });
        };
        for (int round = 0; round < how.rounds; ++round) {
            const std::uint64_t key =
                choose.one_in(2) ? choose.below(how.slots * 2 / 3) : choose.below(how.slots * 10 / 3);
            const std::uint64_t held = how.who == holders::none || choose.one_in(2) ? 0 : choose.bits() & choose.bits();
            const auto is_evictable = [&](kv::slot_id slot) {
                return (held >> index_of(slot) % 64 & 1) == 0 && children[index_of(slot)] == 0;
            };
            if (const auto at = present.find(key); at != present.end()) {
                both([&](auto& one) { one.touch(at->second); });
                if (choose.one_in(3))
                    both([&](auto& one) { kv::on_released(one, at->second); });
            } else {
                kv::eviction_entry newcomer{.key = key,
                                            .bytes = one_size ? 8 : 1 + static_cast<std::size_t>((key * 7) % 16)};
                newcomer.cost = static_cast<double>(1 + key % 5);
                newcomer.depth = static_cast<std::uint32_t>(key % 4);
                newcomer.length = static_cast<std::uint32_t>(key % 7);
                if (!present.empty() && choose.one_in(2)) {
                    newcomer.parent = anyone();
                    newcomer.depth = entries[index_of(*newcomer.parent)].depth + 1;
                    newcomer.length = newcomer.depth + static_cast<std::uint32_t>(choose.below(3));
                }
                both([&](auto& one) { kv::on_miss(one, newcomer); });
                while (free.empty() || bytes + newcomer.bytes > capacity.bytes) {
                    const std::optional<kv::slot_id> victim = state.victim(is_evictable);
                    REQUIRE(victim == plain.victim(is_evictable));
                    if (!victim)
                        break;
                    both([&](auto& one) { kv::evict(one, *victim); });
                    gone(*victim);
                }
                if (!free.empty() && bytes + newcomer.bytes <= capacity.bytes) {
                    const kv::slot_id slot = free.back();
                    free.pop_back();
                    if (newcomer.parent && !present.contains(entries[index_of(*newcomer.parent)].key))
                        newcomer.parent.reset();
                    both([&](auto& one) { one.admit(slot, newcomer); });
                    entries[index_of(slot)] = newcomer;
                    present[key] = slot;
                    bytes += newcomer.bytes;
                    if (how.children && newcomer.parent && ++children[index_of(*newcomer.parent)] == 1)
                        both([&](auto& one) { kv::on_child_added(one, *newcomer.parent); });
                }
            }
            if (!present.empty() && choose.one_in(10))
                if (const kv::slot_id slot = anyone(); children[index_of(slot)] == 0) {
                    both([&](auto& one) { one.erase(slot); });
                    gone(slot);
                }
            if (choose.one_in(4))
                REQUIRE(state.victim(is_evictable) == plain.victim(is_evictable));
        }
    }
}

/// The misuses that every policy reports.
template <kv::eviction_policy Policy>
void says_what_a_caller_does_wrong(const Policy& policy) {
    auto state = kv::open_checked(policy, {.slots = 2, .bytes = 64});
    CHECK_THROWS_AS(state.touch(kv::slot_id{0}), kv::contract_violation);
    CHECK_THROWS_AS(state.erase(kv::slot_id{0}), kv::contract_violation);
    const kv::eviction_entry newcomer{.key = 1, .bytes = 8, .cost = 1.0};
    state.admit(kv::slot_id{0}, newcomer);
    CHECK_THROWS_AS(state.admit(kv::slot_id{0}, newcomer), kv::contract_violation);
}

} // namespace eviction_model
