// SPDX-License-Identifier: MIT
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/eviction/slot_lists.hpp>
#include <kvcache/testing/violations.hpp>

#include <algorithm>
#include <list>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("slot queues are lists that share their slots") {
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
        INFO("seed " << seed);
        kv::testing::detail::choices choose(seed);
        constexpr std::size_t slots = 10, many = 3;
        kv::eviction::slot_lists queues(slots, many);
        std::vector<std::list<kv::slot_id>> plain(many);
        for (int round = 0; round < 3000; ++round) {
            const kv::slot_id slot{static_cast<std::uint32_t>(choose.below(slots))};
            const auto queue = static_cast<std::uint32_t>(choose.below(many));
            const bool present =
                kvcache::ranges::any_of(plain, [&](const auto& one) { return kvcache::ranges::count(one, slot) > 0; });
            REQUIRE(queues.contains(slot) == present);
            for (auto& one : plain)
                one.remove(slot);
            if (!present) {
                queues.push_front(slot, queue);
                plain[queue].push_front(slot);
            } else if (choose.one_in(2)) {
                queues.move_to_front(slot, queue);
                plain[queue].push_front(slot);
            } else {
                queues.remove(slot);
            }
            for (std::uint32_t q = 0; q < many; ++q) {
                REQUIRE(queues.empty(q) == plain[q].empty());
                if (plain[q].empty())
                    continue;
                REQUIRE(queues.front(q) == plain[q].front());
                kv::slot_id at = queues.back(q);
                for (auto one = plain[q].rbegin(); one != plain[q].rend(); ++one, at = queues.newer(at))
                    REQUIRE(at == *one);
                REQUIRE(queues.ends(at));
            }
        }
    }
}

TEST_CASE("the oldest that may leave is found, and those before it are the newest then") {
    kv::eviction::slot_lists queues(4, 1);
    for (std::uint32_t slot = 0; slot < 4; ++slot)
        queues.push_front(kv::slot_id{slot}, 0);
    CHECK(queues.oldest(0, [](kv::slot_id slot) { return index_of(slot) >= 2; }) == kv::slot_id{2});
    CHECK(queues.front(0) == kv::slot_id{1});
    CHECK_FALSE(queues.oldest(0, [](kv::slot_id) { return false; }));
    CHECK(queues.back(0) == kv::slot_id{2});
}

TEST_CASE("touches are applied once each, in order") {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
        CAPTURE(seed);
        kv::testing::detail::choices choose(seed);
        kv::eviction::touch_buffer ring;
        const kv::eviction::slot_lists lists(9, 1);
        const std::vector<int> records(9);
        std::vector<kv::slot_id> entered, applied;
        const auto apply = [&](kv::slot_id slot) { applied.push_back(slot); };
        for (int round = 0; round < 300; ++round) {
            if (choose.one_in(20)) {
                ring.apply_all(apply);
                REQUIRE(applied == entered);
                continue;
            }
            const kv::slot_id slot{static_cast<std::uint32_t>(choose.below(9))};
            entered.push_back(slot);
            ring.add(slot, lists, records, apply);
            REQUIRE(entered.size() - applied.size() <= 16);
        }
        ring.apply_all(apply);
        CHECK(applied == entered);
    }
}
