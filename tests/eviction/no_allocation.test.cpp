// SPDX-License-Identifier: MIT
// An opened policy allocates no more memory, and has allocated at most the documented bytes per slot. A separate
// program, because it replaces operator new.
#include <kvcache/eviction/all.hpp>
#include <kvcache/testing/violations.hpp>

#include <cstddef>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "support/counted_new.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using counted_new::allocated;
using counted_new::allocations;

namespace {

// Runs a full cache under random requests. Returns the bytes per slot that the policy allocated when opened.
template <kv::eviction_policy Policy>
double bytes_a_slot(const Policy& policy) {
    constexpr std::uint32_t slots = 1u << 14;
    const std::size_t before = allocated;
    auto state = policy.open({.slots = slots, .bytes = slots * std::size_t{64}});
    const std::size_t taken = allocated - before;

    kv::testing::detail::choices choose(1);
    std::unordered_map<std::uint64_t, kv::slot_id> present;
    present.reserve(2 * slots);
    std::vector<std::uint64_t> keys(slots);
    std::size_t by_policy = 0;
    std::uint32_t used = 0;
    for (int round = 0; round < 200'000; ++round) {
        const std::uint64_t key = choose.one_in(2) ? choose.below(slots) : choose.below(8 * slots);
        const kv::eviction_entry newcomer{.key = key, .bytes = 64, .cost = 1.0, .length = 3};
        const auto at = present.find(key);
        const std::size_t then = allocations;
        kv::slot_id slot{used};
        if (at != present.end()) {
            state.touch(at->second);
            kv::on_released(state, at->second);
            by_policy += allocations - then;
            continue;
        }
        kv::on_miss(state, newcomer);
        if (used == slots) {
            const auto gone = state.victim([&](kv::slot_id one) { return index_of(one) % 16 != key % 16; });
            if (gone)
                kv::evict(state, *gone);
            by_policy += allocations - then;
            if (!gone)
                return 0.0; // never returns a victim
            slot = *gone;
            present.erase(keys[index_of(slot)]);
        } else {
            ++used;
        }
        const std::size_t later = allocations;
        state.admit(slot, newcomer);
        by_policy += allocations - later;
        keys[index_of(slot)] = key;
        present.emplace(key, slot);
    }
    CHECK(by_policy == 0);
    return static_cast<double>(taken) / slots;
}

} // namespace

TEMPLATE_LIST_TEST_CASE("an open eviction policy takes no memory", "", kv::eviction_policies) {
    constexpr int ghosts = std::is_same_v<TestType, kv::eviction::learned_reuse> ? 4 : 2; // per slot, at most
    CHECK(bytes_a_slot(TestType{}) <= 32.0 + ghosts * 16.0);
}

TEST_CASE("eviction policies allocate the memory that they state") {
    constexpr double fixed = 0.5; // memory independent of the number of slots, per slot here
    CHECK(bytes_a_slot(kv::eviction::lru{}) <= 8 + fixed);
    CHECK(bytes_a_slot(kv::eviction::fifo{}) <= 9 + fixed);
    CHECK(bytes_a_slot(kv::eviction::clock{}) <= 9 + fixed);
    CHECK(bytes_a_slot(kv::eviction::sieve{}) <= 9 + fixed);
    CHECK(bytes_a_slot(kv::eviction::slru{}) <= 16 + fixed);
    CHECK(bytes_a_slot(kv::eviction::lfu{}) <= 9 + fixed);
    CHECK(bytes_a_slot(kv::eviction::lfu{.history = 1.0}) <= 17 + 21 + fixed);
    CHECK(bytes_a_slot(kv::eviction::s3_fifo{}) <= 25 + 0.9 * 16 + fixed);
    CHECK(bytes_a_slot(kv::eviction::arc{}) <= 25 + 2 * 16 + fixed);
    CHECK(bytes_a_slot(kv::eviction::lirs{}) <= 29 + 21 + fixed);
    CHECK(bytes_a_slot(kv::eviction::w_tiny_lfu{}) <= 32 + fixed);
    CHECK(bytes_a_slot(kv::eviction::gdsf{}) <= 32 + fixed);
    CHECK(bytes_a_slot(kv::eviction::learned_reuse{}) <= 32 + 4 * 16 + fixed);
    CHECK(bytes_a_slot(kv::eviction::learned_reuse{.ghosts_a_slot = 0}) <= 32 + fixed);
    CHECK(bytes_a_slot(kv::eviction::lhd{}) <= 32 + fixed);
    CHECK(bytes_a_slot(kv::eviction::cost_aware{}) <= 25 + fixed);
    CHECK(bytes_a_slot(kv::eviction::tail_safe_lru{}) <= 17 + fixed);
    CHECK(bytes_a_slot(kv::eviction::never{}) == 0.0);
    CHECK(bytes_a_slot(kv::eviction::prioritised<kv::eviction::lru>{}) <= 2 * 8 + 1 + fixed);
    CHECK(bytes_a_slot(kv::eviction::expiring<kv::eviction::lru>{}) <= 8 + 12 + fixed);
}
