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
    CHECK(contest.leader(0) == 1);
    for (std::uint64_t i = 0; i < 80'000; ++i) // each comes twice, then others
        contest.use({.key = 1'000'000 + i / 4000 * 2000 + i % 2000, .bytes = 1});
    CHECK(contest.leader(1) == 0);
}

TEST_CASE("nobody leads a contest of equals anew") {
    kv::shadow_contest<kv::lru, kv::lru> contest(room, 1000);
    kv::testing::detail::choices choose(1);
    for (int i = 0; i < 50'000; ++i)
        contest.use({.key = choose.below(10'000), .bytes = 1});
    CHECK(contest.leader(0) == 0);
    CHECK(contest.leader(1) == 1);
}

TEST_CASE("a contest says whose shadow an entry leaves") {
    kv::shadow_contest<kv::lru, kv::never> contest({.slots = 2, .bytes = 2}, 2);
    std::vector<std::pair<std::size_t, std::uint32_t>> gone;
    const auto hear = [&](std::size_t policy, std::uint32_t mark) { gone.emplace_back(policy, mark); };
    contest.use({.key = 1, .bytes = 1}, hear);
    contest.use({.key = 2, .bytes = 1}, hear);
    CHECK(contest.mark(1, 71) == std::array{true, true});
    CHECK(contest.mark(3, 73) == std::array{false, false});
    contest.use({.key = 3, .bytes = 1}, hear); // never lets nothing go
    CHECK(gone == std::vector<std::pair<std::size_t, std::uint32_t>>{{0, 71}});
    CHECK(contest.mark(1, 71) == std::array{false, true});
    CHECK(contest.mark(3, 73) == std::array{true, false});
    CHECK(contest.mark(3, kv::shadow_cache<kv::lru>::no_mark) == std::array{true, false});
    contest.use({.key = 4, .bytes = 1}, hear);
    contest.use({.key = 5, .bytes = 1}, hear); // 2 and 3 left, without a mark
    CHECK(gone.size() == 1);
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
