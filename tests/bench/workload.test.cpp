// SPDX-License-Identifier: MIT
#include "../../bench/replay/workload.hpp"

#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("an access knows when its key comes again") {
    bench::next_uses next;
    const std::uint32_t never = bench::next_uses::never;
    const std::vector<std::pair<std::uint64_t, std::uint32_t>> accesses = {{5, 0}, {6, 0}, {5, 1},
                                                                           {7, 2}, {5, 4}, {6, 4}};
    for (const auto& [key, time] : accesses)
        next.add(key, time);
    CHECK(std::vector(next.times().begin(), next.times().end()) ==
          std::vector<std::uint32_t>{1, 4, 4, never, never, never});
    CHECK(next.distinct() == 3);
    CHECK_THROWS_AS(next.add(1, never), kv::contract_violation);
}
