// SPDX-License-Identifier: MIT
#include <kvcache/eviction/slot_heap.hpp>
#include <kvcache/testing/violations.hpp>

#include <algorithm>
#include <map>
#include <utility>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("a slot heap has the lowest rank first, and of one rank the oldest") {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
        INFO("seed " << seed);
        kv::testing::detail::choices choose(seed);
        constexpr std::size_t slots = 30;
        kv::slot_heap heap(slots);
        std::map<kv::slot_id, std::pair<double, int>> plain;
        for (int round = 0; round < 4000; ++round) {
            const kv::slot_id slot{static_cast<std::uint32_t>(choose.below(slots))};
            REQUIRE(heap.contains(slot) == plain.contains(slot));
            if (plain.contains(slot) && choose.one_in(3)) {
                heap.remove(slot);
                plain.erase(slot);
            } else {
                const auto rank = static_cast<double>(choose.below(10));
                heap.rank(slot, rank);
                plain[slot] = {rank, round};
            }
            REQUIRE(heap.size() == plain.size());
            if (plain.empty())
                continue;
            const auto lowest = std::ranges::min_element(plain, {}, [](const auto& one) { return one.second; });
            REQUIRE(heap.at(0) == lowest->first);
            REQUIRE(heap.rank(heap.at(0)) == lowest->second.first);
        }
    }
}
