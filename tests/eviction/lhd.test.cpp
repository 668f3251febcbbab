// SPDX-License-Identifier: MIT
#include <kvcache/eviction/lhd.hpp>
#include <kvcache/eviction/lru.hpp>

#include "model.hpp"

using namespace eviction_model;

TEST_CASE("before anything is learned the young and the soon hit are dear") {
    const kv::eviction::hit_density density(100);
    CHECK(density.young());
    CHECK(density.at(3, 0) > density.at(3, 1));
    CHECK(density.at(4, 1) > density.at(3, 1));
}

TEST_CASE("groups are powers of two, the shortest ages highest") {
    const kv::eviction::hit_density density(100);
    CHECK(density.ages() == 256);
    CHECK(density.group(0) == 15);
    CHECK(density.group(1) == 8);
    CHECK(density.group(2) == 7);
    CHECK(density.group(3) == 7);
    CHECK(density.group(255) == 1);
    CHECK(density.group(256) == 0);
    CHECK(density.group(512) == 0);
}

TEST_CASE("density is the hits to come by the time to come") {
    kv::eviction::hit_density density(64); // updates every 1,024 uses
    for (int event = 0; event < 300; ++event) {
        density.hit(2, 1);
        density.evicted(2, 3);
    }
    for (int use = 0; use < 1024; ++use)
        density.pass(10);
    // At age 3: no hits, one of two entries is evicted. At age 1: half are hit at once, half stay for 3 steps.
    CHECK(density.at(2, 3) == Approx(0.0));
    CHECK(density.at(2, 1) == Approx(300.0 / (300.0 + 300.0 + 600.0)));
    CHECK(density.at(2, 0) == Approx(300.0 / 1800.0));
    CHECK(density.at(5, 0) == Approx(0.0)); // no events there
}

TEST_CASE("ages keep their meaning when their steps change") {
    kv::eviction::hit_density density(1024); // a step is 128 uses; updates every 2^14
    const auto rounds = [&](int count) {
        for (int use = 0; use < count << 14; ++use)
            density.pass(64); // few entries: a step is 8 uses from the sixth round on
    };
    rounds(5);
    CHECK(density.age(density.now() - 127) == 0);
    for (int event = 0; event < 1000; ++event)
        density.hit(0, 1); // 128 to 255 uses old: 16 to 31 of the new steps
    rounds(1);
    CHECK(density.age(density.now() - 7) == 0);
    CHECK(density.age(density.now() - 8) == 1);
    CHECK(density.at(0, 31) == Approx(1.0));
    CHECK(density.at(0, 16) == Approx(16.0 / (16.0 * 17.0 / 2.0)));
    CHECK(density.at(0, 32) == Approx(0.0));
}

namespace {
constexpr auto anyone = [](kv::slot_id) { return true; };
}

TEST_CASE("of equal entries, lhd evicts the largest") {
    auto state = kv::eviction::lhd{}.open({.slots = 3, .bytes = 0});
    for (std::uint32_t slot = 0; slot < 3; ++slot)
        state.admit(kv::slot_id{slot}, {.key = slot, .bytes = slot == 1 ? 64u : 8u});
    CHECK(state.victim(anyone) == kv::slot_id{1});
    CHECK(state.victim([](kv::slot_id slot) { return slot == kv::slot_id{2}; }) == kv::slot_id{2});
    CHECK_FALSE(state.victim([](kv::slot_id) { return false; }));
    says_what_a_caller_does_wrong(kv::eviction::lhd{});
}

TEST_CASE("one seed of lhd, one victim") {
    for (std::uint64_t seed = 0; seed < 3; ++seed)
        same_victims(kv::eviction::lhd{.seed = seed},
                     [&](kv::eviction_capacity room) { return kv::eviction::lhd{.seed = seed}.open(room); });
}

TEST_CASE("lhd finds the one that may leave among many") {
    constexpr std::uint32_t slots = 500;
    auto state = kv::eviction::lhd{}.open({.slots = slots, .bytes = slots});
    for (std::uint32_t slot = 0; slot < slots; ++slot)
        state.admit(kv::slot_id{slot}, {.key = slot, .bytes = 1});
    for (const std::uint32_t only : {0u, 77u, 499u})
        CHECK(state.victim([&](kv::slot_id slot) { return index_of(slot) == only; }) == kv::slot_id{only});
}

TEST_CASE("lhd learns that what is scanned is not hit, and keeps what is") {
    // One use in five is of one of 60 keys; the other keys are used once. The capacity is 100.
    constexpr std::uint32_t slots = 100;
    const auto hits = [&](const auto& policy) {
        kv::testing::detail::choices choose(1);
        auto state = policy.open({.slots = slots, .bytes = slots});
        std::map<std::uint64_t, kv::slot_id> present;
        std::vector<std::uint64_t> keys(slots);
        std::size_t found = 0;
        for (std::uint64_t round = 0; round < 200'000; ++round) {
            const std::uint64_t key = round % 5 == 0 ? choose.below(60) : 1000 + round;
            if (const auto at = present.find(key); at != present.end()) {
                state.touch(at->second);
                found += round > 100'000;
                continue;
            }
            kv::slot_id slot{static_cast<std::uint32_t>(present.size())};
            if (present.size() == slots) {
                slot = *state.victim(anyone);
                kv::evict(state, slot);
                present.erase(keys[index_of(slot)]);
            }
            state.admit(slot, {.key = key, .bytes = 1});
            keys[index_of(slot)] = key;
            present[key] = slot;
        }
        return found;
    };
    CHECK(hits(kv::eviction::lhd{}) > 2 * hits(kv::eviction::lru{}));
}

TEST_CASE("what others continue is not drawn, and is again when they have left") {
    constexpr std::uint32_t slots = 500;
    auto state = kv::eviction::lhd{}.open({.slots = slots, .bytes = slots});
    for (std::uint32_t slot = 0; slot < slots; ++slot)
        state.admit(kv::slot_id{slot}, {.key = slot, .bytes = 1});
    for (std::uint32_t slot = 0; slot + 1 < slots; ++slot)
        kv::on_child_added(state, kv::slot_id{slot});
    std::size_t asked = 0;
    const auto counting = [&](kv::slot_id) { return ++asked > 0; };
    for (std::uint32_t slot = slots - 1; slot > 0; --slot) { // a chain is evicted from its end
        CHECK(state.victim(counting) == kv::slot_id{slot});
        kv::evict(state, kv::slot_id{slot});
        kv::on_last_child_removed(state, kv::slot_id{slot - 1});
    }
    CHECK(asked == slots - 1);
}
