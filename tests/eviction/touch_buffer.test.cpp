// SPDX-License-Identifier: MIT
#include <kvcache/eviction/touch_buffer.hpp>
#include <kvcache/testing/violations.hpp>

#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("touches are applied once each, in order, after their memory was reserved") {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
        CAPTURE(seed);
        kv::testing::detail::choices choose(seed);
        kv::eviction::touch_buffer ring;
        std::vector<kv::slot_id> entered, fetched, reached, applied;
        const auto into = [](std::vector<kv::slot_id>& list) {
            return [&list](kv::slot_id slot) { list.push_back(slot); };
        };
        for (int round = 0; round < 300; ++round) {
            if (choose.one_in(20)) {
                ring.apply_all(into(applied));
                REQUIRE(applied == entered);
                continue;
            }
            const kv::slot_id slot{static_cast<std::uint32_t>(choose.below(9))};
            entered.push_back(slot);
            ring.add(slot, into(fetched), into(reached), into(applied));
            REQUIRE(fetched == entered);
            REQUIRE(entered.size() - applied.size() <= 16);
        }
        ring.apply_all(into(applied));
        CHECK(applied == entered);
    }
}
