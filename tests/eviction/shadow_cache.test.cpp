// SPDX-License-Identifier: MIT
#include <kvcache/adapters/replay/object_replay.hpp>
#include <kvcache/eviction/arc.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/eviction/never.hpp>
#include <kvcache/eviction/s3_fifo.hpp>
#include <kvcache/eviction/shadow_cache.hpp>

#include "model.hpp"

using namespace eviction_model;

namespace {

constexpr auto nobody = [](std::uint32_t) {};

// Hits of a shadow and of a cache, use by use.
template <class Policy>
void hits_what_a_cache_hits(const Policy& policy, std::uint64_t seed) {
    INFO("seed " << seed);
    kv::testing::detail::choices choose(seed);
    constexpr std::size_t slots = 50, bytes = 200;
    kv::shadow_cache<Policy> shadow(policy, {.slots = slots, .bytes = bytes});
    kv::object_replay<Policy> cache(policy, bytes, slots);
    for (int round = 0; round < 5000; ++round) {
        const std::uint64_t key = choose.one_in(2) ? choose.below(40) : choose.below(1000);
        const std::size_t size = key == 7 ? bytes + 1 : 1 + key % 9; // one is larger than the cache
        const bool had = cache.run({.key = key, .bytes = size});
        REQUIRE(shadow.use({.key = key, .bytes = size, .cost = 1.0, .length = 1}, nobody) == had);
    }
}

} // namespace

TEST_CASE("a shadow hits what a cache of its policy hits") {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
        hits_what_a_cache_hits(kv::lru{}, seed);
        hits_what_a_cache_hits(kv::arc{}, seed);
        hits_what_a_cache_hits(kv::s3_fifo{}, seed);
        hits_what_a_cache_hits(kv::never{}, seed);
    }
}

TEST_CASE("who settles in a shadow was used until then") {
    kv::shadow_cache<kv::lru> shadow(kv::lru{}, {.slots = 2, .bytes = 2});
    shadow.use({.key = 1, .bytes = 1}, nobody);
    shadow.use({.key = 2, .bytes = 1}, nobody);
    shadow.settle(1);
    shadow.settle(99); // is not present
    shadow.use({.key = 3, .bytes = 1}, nobody);
    CHECK(shadow.use({.key = 1, .bytes = 1}, nobody));
    CHECK_FALSE(shadow.use({.key = 2, .bytes = 1}, nobody));
}

TEST_CASE("a shadow without slots has nothing") {
    kv::shadow_cache<kv::lru> shadow(kv::lru{}, {.slots = 0, .bytes = 0});
    CHECK_FALSE(shadow.use({.key = 1, .bytes = 1}, nobody));
    shadow.settle(1);
}
