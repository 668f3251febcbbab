// SPDX-License-Identifier: MIT
#include <kvcache/codec/row_major.hpp>
#include <kvcache/layers/grouped.hpp>

#include <cstdint>
#include <optional>
#include <vector>

#include "layers/group_model.hpp"
#include "layers/owned_model.hpp"
#include "support/counted_new.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache_test;

TEST_CASE("allocations and copies that fail leave sequences of layer groups as they were") {
    std::size_t refused = 0;
    for (std::uint64_t seed = 1; seed <= 100; ++seed)
        refused += play(seed, 100, kv::eviction::lru{}, true, &counted_new::fails_at).refused;
    CHECK(refused > 1000);
}

TEST_CASE("allocations that fail leave groups in the cache's memory as they were, and in a tier") {
    std::size_t refused = 0, loaded = 0;
    for (std::uint64_t seed = 1; seed <= 60; ++seed)
        refused += play_owned(seed, kv::codec::nhd_f32{}, kv::tier::memory{}, &loaded, &counted_new::fails_at).refused;
    CHECK(refused > 100);
    CHECK(loaded > 500);
}

TEST_CASE("a host with three layer groups causes no allocation once the cache is warm") {
    group_host host({16, {full(), window(40), state(400)}});
    auto cache = kv::make_cache({.limit = {.bytes = 1 << 17}}, pages_of(host, 0), groups_of(host), kv::eviction::lru{});
    std::vector<kv::token_id> tokens(300);
    const auto run = [&](int first) {
        for (std::size_t i = 0; i < tokens.size(); ++i)
            tokens[i] = kv::token_id{first + static_cast<std::int32_t>(i)};
        auto got = cache.acquire(tokens);
        REQUIRE(got.has_value());
        const std::size_t known = got->lease.first();
        REQUIRE(got->lease.snapshot(2, 288).has_value());
        got->lease.commit(std::span(tokens).subspan(known));
        auto fork = got->sequence.fork(288);
        fork.truncate(100);
        auto more = cache.reserve(got->sequence, 20);
        REQUIRE(more.has_value());
        more->commit(std::span(tokens).first(20));
    };
    std::size_t last = 0;
    for (int round = 0; round < 40; ++round) {
        const std::size_t before = counted_new::allocations;
        run(1000 * (round % 20));
        last = counted_new::allocations - before;
    }
    CHECK(last == 0);
    CHECK(cache.check().has_value());
}
