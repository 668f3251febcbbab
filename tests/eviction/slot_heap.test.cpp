// SPDX-License-Identifier: MIT
#include <kvcache/eviction/slot_heap.hpp>
#include <kvcache/testing/violations.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("a slot heap has the lowest rank first, and of one rank the oldest") {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
        INFO("seed " << seed);
        kv::testing::detail::choices choose(seed);
        constexpr std::size_t slots = 30;
        kv::eviction::slot_heap heap(slots);
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

TEST_CASE("a slot set aside keeps its rank, and is not a victim") {
    for (std::uint64_t seed = 0; seed < 30; ++seed) {
        CAPTURE(seed);
        kv::testing::detail::choices choose(seed);
        constexpr std::uint32_t slots = 12;
        kv::eviction::slot_heap heap(slots);
        struct known {
            double rank = 0.0;
            int turn = 0;
            bool present = false, aside = false;
        };
        std::vector<known> plain(slots);
        for (int round = 0; round < 600; ++round) {
            const auto at = static_cast<std::uint32_t>(choose.below(slots));
            const kv::slot_id slot{at};
            if (!plain[at].present || choose.one_in(3)) {
                const auto rank = static_cast<double>(choose.below(5));
                heap.rank(slot, rank);
                plain[at] = {rank, round, true, plain[at].present && plain[at].aside};
            } else if (choose.one_in(4)) {
                heap.remove(slot);
                plain[at] = {};
            } else if (choose.one_in(2)) {
                heap.set_aside(slot);
                plain[at].aside = true;
            } else {
                heap.put_back(slot);
                plain[at].aside = false;
            }
            std::size_t size = 0;
            std::optional<std::uint32_t> lowest;
            for (std::uint32_t i = 0; i < slots; ++i) {
                REQUIRE(heap.contains(kv::slot_id{i}) == plain[i].present);
                if (!plain[i].present || plain[i].aside)
                    continue;
                ++size;
                if (!lowest ||
                    std::pair(plain[i].rank, plain[i].turn) < std::pair(plain[*lowest].rank, plain[*lowest].turn))
                    lowest = i;
            }
            REQUIRE(heap.size() == size);
            if (lowest)
                REQUIRE(heap.at(0) == kv::slot_id{*lowest});
        }
    }
}
