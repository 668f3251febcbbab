// SPDX-License-Identifier: MIT
#include <kvcache/eviction/fifo.hpp>
#include <kvcache/eviction/s3_fifo.hpp>
#include <kvcache/testing/tier_conformance.hpp>
#include <kvcache/tier/all.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEMPLATE_LIST_TEST_CASE("tiers pass the conformance tests", "", kv::tier_policies) {
    for (std::uint64_t seed = 0; seed < 4; ++seed)
        CHECK(kv::testing::tier_conformance(TestType{}, seed).empty());
}

TEST_CASE("small tiers and those of other evictions pass the conformance tests") {
    for (std::uint64_t seed = 0; seed < 4; ++seed)
        for (const std::size_t records : {0u, 1u, 7u}) {
            CHECK(kv::testing::tier_conformance(kv::tier::memory<>{.records = records}, seed).empty());
            CHECK(kv::testing::tier_conformance(
                      kv::tier::memory<kv::eviction::s3_fifo>{.bytes = 40000, .records = records}, seed)
                      .empty());
        }
}

TEST_CASE("a tier in memory keeps its budget, and the policy chooses what is evicted") {
    auto by_age = kv::tier::memory<kv::eviction::fifo>{.bytes = 1000, .records = 10}.open();
    auto by_use = kv::tier::memory<>{.bytes = 1000, .records = 10}.open();
    const std::vector<std::byte> bytes(300), large(1001);
    const auto name = [](std::uint64_t n) { return kv::testing::detail::tier_name(n); };
    const auto ignore = [](std::span<const std::byte>) {};
    const auto play = [&](auto& tier) {
        const std::span<const std::byte> piece[] = {bytes}, too_large[] = {large};
        for (std::uint64_t n = 0; n < 3; ++n)
            CHECK(tier.put(name(n), piece));
        CHECK(*tier.read(name(0).name, ignore));
        CHECK(tier.put(name(3), piece));
        CHECK(tier.put(name(4), too_large));
        CHECK(tier.counts().records == 3);
        CHECK(tier.counts().bytes == 900);
        CHECK(tier.counts().evicted == 1);
        CHECK(tier.counts().dropped == 1);
        CHECK_FALSE(tier.contains(name(4).name));
    };
    play(by_age);
    play(by_use);
    CHECK_FALSE(by_age.contains(name(0).name));
    CHECK(by_use.contains(name(0).name));
    CHECK_FALSE(by_use.contains(name(1).name));
}
