// SPDX-License-Identifier: MIT
#include <kvcache/cache/group_leases.hpp>
#include <kvcache/eviction/learned_reuse.hpp>
#include <kvcache/eviction/lru.hpp>

#include <cstdint>

#include "layers/group_model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache_test;

TEST_CASE("whatever hosts do, sequences of layer groups read what was written for their tokens") {
    outcome all;
    for (std::uint64_t seed = 1; seed <= 100; ++seed) {
        const outcome one = play(seed, 100, kv::eviction::lru{});
        all.hits += one.hits;
        all.refused += one.refused;
    }
    CHECK(all.hits > 1000);
    CHECK(all.refused > 100);
}
TEST_CASE("where nothing is evicted a match is the longest that every layer group can continue") {
    for (std::uint64_t seed = 1; seed <= 100; ++seed)
        CHECK(play(seed, 40, kv::eviction::lru{}, false).refused == 0);
}
TEST_CASE("the same with the standard eviction policy, for long", "[.long]") {
    for (std::uint64_t seed = 1; seed <= 1000; ++seed)
        play(seed, 100, kv::eviction::learned_reuse{});
}
