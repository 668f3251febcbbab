// SPDX-License-Identifier: MIT
#include <kvcache/eviction/lru.hpp>
#include <kvcache/eviction/never.hpp>
#include <kvcache/eviction/shadow_contest.hpp>

#include "model.hpp"

using namespace eviction_model;

namespace {
constexpr kv::eviction_room room{.slots = 4000, .bytes = 4000};
}

TEST_CASE("the leader of a contest follows the workload") {
    kv::shadow_contest<kv::lru, kv::never> contest(room, 1000);
    for (std::uint64_t i = 0; i < 40'000; ++i) // a loop, of which lru keeps nothing
        contest.use({.key = i % 5000, .bytes = 1});
    CHECK(contest.leader(0, 2) == 1);
    CHECK(contest.leader(0, 1) == 0);          // it is no candidate
    for (std::uint64_t i = 0; i < 80'000; ++i) // each comes twice, then others
        contest.use({.key = 1'000'000 + i / 4000 * 2000 + i % 2000, .bytes = 1});
    CHECK(contest.leader(1, 2) == 0);
}

TEST_CASE("nobody leads a contest of equals anew") {
    kv::shadow_contest<kv::lru, kv::lru> contest(room, 1000);
    kv::testing::detail::choices choose(1);
    for (int i = 0; i < 50'000; ++i)
        contest.use({.key = choose.below(10'000), .bytes = 1});
    CHECK(contest.leader(0, 2) == 0);
    CHECK(contest.leader(1, 2) == 1);
}

TEST_CASE("a contest samples as large a part of the keys as of the room") {
    for (const std::size_t slots : {0u, 10u, 1000u, 4000u}) {
        kv::shadow_contest<kv::lru, kv::never> contest(room, slots);
        double sampled = 0.0;
        for (std::uint64_t key = 0; key < 100'000; ++key)
            sampled += contest.samples(key) ? 1.0 : 0.0;
        CHECK(sampled == Approx(25.0 * static_cast<double>(slots)).epsilon(0.2));
    }
}
