// SPDX-License-Identifier: MIT
#include <kvcache/eviction/greedy_dual.hpp>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {
constexpr auto anyone = [](kv::slot_id) { return true; };
constexpr auto one = [](kv::slot_id) { return 1.0; };
} // namespace

TEST_CASE("worth that is not renewed loses to newcomers in time") {
    kv::eviction::greedy_dual ranks(3);
    ranks.rank(kv::slot_id{0}, 5.5);
    for (int newcomer = 0; newcomer < 5; ++newcomer) {
        ranks.rank(kv::slot_id{1}, 1.0);
        REQUIRE(ranks.victim(anyone, one) == kv::slot_id{1});
        ranks.evict(kv::slot_id{1});
    }
    ranks.rank(kv::slot_id{1}, 1.0);
    CHECK(ranks.victim(anyone, one) == kv::slot_id{0});
    ranks.remove(kv::slot_id{0}); // removed, not evicted: the clock does not move
    ranks.rank(kv::slot_id{2}, 1.0);
    CHECK(ranks.victim(anyone, one) == kv::slot_id{1});
}

TEST_CASE("a valuable entry is found after any number of cheap ones that may not be evicted") {
    kv::eviction::greedy_dual ranks(4);
    for (std::uint32_t slot = 0; slot < 3; ++slot)
        ranks.rank(kv::slot_id{slot}, 0.0);
    ranks.rank(kv::slot_id{3}, 1e9);
    const auto free = [](kv::slot_id) { return 0.0; };
    CHECK(ranks.victim([](kv::slot_id slot) { return slot == kv::slot_id{3}; }, free) == kv::slot_id{3});
    CHECK_FALSE(ranks.victim([](kv::slot_id) { return false; }, free));
}
