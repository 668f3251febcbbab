// SPDX-License-Identifier: MIT
#include <kvcache/eviction/cost_aware.hpp>

#include "model.hpp"

using namespace eviction_model;

namespace {
constexpr auto anyone = [](kv::slot_id) { return true; };
}

TEST_CASE("of entries used alike, cost_aware keeps those that save most for their bytes") {
    auto state = kv::eviction::cost_aware{}.open({.slots = 3});
    state.admit(kv::slot_id{0}, {.key = 0, .bytes = 8, .cost = 4.0});
    state.admit(kv::slot_id{1}, {.key = 1, .bytes = 2, .cost = 3.0});
    state.admit(kv::slot_id{2}, {.key = 2, .bytes = 8, .cost = 5.0});
    for (const std::uint32_t next : {0u, 2u, 1u}) {
        const auto found = state.victim(anyone);
        REQUIRE(found == kv::slot_id{next});
        state.evict(*found);
    }
}

TEST_CASE("depth makes nothing dearer for cost_aware") {
    auto state = kv::eviction::cost_aware{}.open({.slots = 2});
    state.admit(kv::slot_id{0}, {.key = 0, .bytes = 8, .cost = 1.0, .depth = 1000, .length = 2000});
    state.admit(kv::slot_id{1}, {.key = 1, .bytes = 8, .cost = 1.0});
    CHECK(state.victim(anyone) == kv::slot_id{0}); // the first admitted
}

TEST_CASE("cost_aware learns how likely a hit is after so many uses") {
    auto state = kv::eviction::cost_aware{}.open({.slots = 4});
    CHECK(state.worth().chance_of_hit(1) == Approx(0.5));
    for (std::uint64_t key = 0; key < 1000; ++key) { // one in four is used again, and then twice more
        state.admit(kv::slot_id{0}, {.key = key, .bytes = 1, .cost = 1.0});
        for (int use = 0; use < 3 && key % 4 == 0; ++use)
            state.touch(kv::slot_id{0});
        state.evict(kv::slot_id{0});
    }
    CHECK(state.worth().chance_of_hit(1) == Approx(0.25).epsilon(0.01));
    CHECK(state.worth().chance_of_hit(2) > 0.99);
    // A new entry is evicted before one that was used twice, although its hit would save three times as much.
    state.admit(kv::slot_id{0}, {.key = 5000, .bytes = 1, .cost = 1.0});
    state.touch(kv::slot_id{0});
    state.admit(kv::slot_id{1}, {.key = 5001, .bytes = 1, .cost = 3.0});
    CHECK(state.victim(anyone) == kv::slot_id{1});
}

TEST_CASE("an unused entry ages in cost_aware, whatever it saves") {
    auto state = kv::eviction::cost_aware{}.open({.slots = 3});
    state.admit(kv::slot_id{0}, {.key = 0, .bytes = 1, .cost = 50.0});
    std::uint64_t key = 1;
    for (; key < 100'000; ++key) {
        state.admit(kv::slot_id{1}, {.key = key, .bytes = 1, .cost = 1.0});
        if (key % 2 == 0)
            state.touch(kv::slot_id{1});
        const auto found = state.victim(anyone);
        REQUIRE(found);
        state.evict(*found);
        if (found == kv::slot_id{0})
            break;
    }
    CHECK(key < 1000);
    says_what_a_caller_does_wrong(kv::eviction::cost_aware{});
}
