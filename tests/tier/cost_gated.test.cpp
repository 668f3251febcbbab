// SPDX-License-Identifier: MIT
#include <kvcache/tier.hpp>
#include <kvcache/tier/cost_gated.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "cache/past_rows.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("what a load takes is a wait and a time for each record") {
    kv::tier::load_cost cost;
    CHECK(cost.seconds(1000) == 0.0); // so that a read is tried
    cost.measure(10, 0.020);
    CHECK(cost.seconds(20) == Approx(0.040));
    for (std::size_t n = 1; n < 60; ++n)
        cost.measure(n % 13 + 1, 0.010 + 0.001 * static_cast<double>(n % 13 + 1));
    CHECK(cost.seconds(1) == Approx(0.011).epsilon(0.01));
    CHECK(cost.seconds(100) == Approx(0.110).epsilon(0.01));
    const double before = cost.seconds(5);
    for (int i = 0; i < 20; ++i)
        cost.doubt();
    CHECK(cost.seconds(5) < 0.5 * before);
    cost.measure(5, before);
    CHECK(cost.seconds(5) == Approx(before).epsilon(0.05));
    for (int i = 0; i < 200; ++i)
        cost.measure(8, 0.1); // it has become slow, and all measurements have one size
    CHECK(cost.seconds(8) == Approx(0.1).epsilon(0.01));
    for (std::size_t n = 1; n < 100; ++n)
        cost.measure(n, 1.0); // a latency only
    CHECK(cost.seconds(1000) == Approx(1.0).epsilon(0.25));
}

TEST_CASE("a tier that is slower than computing is left alone, counted, and tried again") {
    using namespace testing_rows;
    auto cache = made(6, kv::tier::cost_gated<>{.margin = 1e6}); // independent of the load of this machine
    const tokens one = some(64, 1), other = some(64, 2), third = some(64, 3);
    const auto prefill_all = [&] {
        for (const tokens* prompt : {&one, &other, &third})
            prefill(cache, *prompt); // four pages each in a memory of six: they evict each other
    };
    prefill_all();
    prefill_all();
    CHECK(kv::tier_stats_of(cache).slower == 0);
    CHECK(kv::tier_stats_of(cache).hits > 0);
    const auto [asked, hits] = std::pair(kv::tier_stats_of(cache).asked, kv::tier_stats_of(cache).hits);
    cache.tier().took(1, 1e15);
    for (int i = 0; i < 20; ++i)
        prefill_all();
    CHECK(kv::tier_stats_of(cache).slower == kv::tier_stats_of(cache).asked - asked);
    CHECK(kv::tier_stats_of(cache).slower > 0);
    CHECK(kv::tier_stats_of(cache).hits == hits);
    for (int i = 0; i < 2000; ++i)
        static_cast<void>(cache.tier().worth(1, 0.0));
    prefill_all();
    CHECK(kv::tier_stats_of(cache).hits > hits);
    CHECK(cache.check());
}
