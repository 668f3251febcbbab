// SPDX-License-Identifier: MIT
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/testing/violations.hpp>

#include <algorithm>
#include <list>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("lru is a list in the order of use") {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
        INFO("seed " << seed);
        kv::testing::detail::choices choose(seed);
        constexpr std::size_t slots = 12;
        auto state = kv::eviction::lru{}.open({.slots = slots});
        std::list<kv::slot_id> order; // newest first
        for (int round = 0; round < 2000; ++round) {
            const kv::slot_id slot{static_cast<std::uint32_t>(choose.below(slots))};
            const auto at = kvcache::ranges::find(order, slot);
            if (at == order.end()) {
                state.admit(slot, {});
                order.push_front(slot);
            } else if (choose.one_in(4)) {
                state.erase(slot);
                order.erase(at);
            } else {
                state.touch(slot);
                order.splice(order.begin(), order, at);
            }
            const std::uint64_t held = choose.bits() & choose.bits();
            const auto is_evictable = [&](kv::slot_id one) { return (held >> index_of(one) & 1) == 0; };
            std::optional<kv::slot_id> expected;
            for (std::size_t n = order.size(); n > 0 && !expected; --n) {
                if (is_evictable(order.back()))
                    expected = order.back();
                else // in use
                    order.splice(order.begin(), order, std::prev(order.end()));
            }
            REQUIRE(state.victim(is_evictable) == expected);
        }
    }
}

TEST_CASE("lru reports a caller's mistakes") {
    auto state = kv::open_checked(kv::eviction::lru{}, {.slots = 2});
    CHECK_THROWS_AS(state.touch(kv::slot_id{0}), kv::contract_violation);
    CHECK_THROWS_AS(state.erase(kv::slot_id{0}), kv::contract_violation);
    state.admit(kv::slot_id{0}, {});
    CHECK_THROWS_AS(state.admit(kv::slot_id{0}, {}), kv::contract_violation);
}
