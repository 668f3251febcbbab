// SPDX-License-Identifier: MIT
#include "../../bench/replay/object_replay.hpp"

#include <kvcache/eviction/all.hpp>
#include <kvcache/testing/violations.hpp>

#include <algorithm>
#include <list>
#include <vector>

#include "../../bench/replay/bounds.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

std::vector<bench::object_access> random_accesses(std::uint64_t seed, std::size_t count, std::uint64_t largest) {
    kv::testing::detail::choices choose(seed);
    std::vector<bench::object_access> accesses;
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint64_t key = choose.below(1 + choose.below(40));
        accesses.push_back({static_cast<double>(i), key, 1 + key * 7 % largest});
    }
    return accesses;
}

bench::next_uses next_of(const std::vector<bench::object_access>& accesses) {
    bench::next_uses next;
    for (std::size_t i = 0; i < accesses.size(); ++i)
        next.add(accesses[i].key, static_cast<std::uint32_t>(i));
    return next;
}

} // namespace

TEST_CASE("a replayed lru is a list of objects in the order of use") {
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
        const std::uint64_t capacity = 1 + seed * 3;
        INFO("seed " << seed << ", capacity " << capacity);
        bench::object_replay<kv::eviction::lru> replay({}, capacity, 40);
        std::list<bench::object_access> present; // newest first
        std::uint64_t used = 0;
        for (const auto& access : random_accesses(seed, 500, 20)) {
            const auto at = std::find_if(present.begin(), present.end(),
                                         [&](const bench::object_access& one) { return one.key == access.key; });
            REQUIRE(replay.run(access) == (at != present.end()));
            if (at != present.end()) {
                present.splice(present.begin(), present, at);
                continue;
            }
            if (access.bytes > capacity)
                continue;
            for (; used + access.bytes > capacity; present.pop_back())
                used -= present.back().bytes;
            present.push_front(access);
            used += access.bytes;
            REQUIRE(replay.bytes() == used);
            REQUIRE(replay.size() == present.size());
        }
    }
}

TEMPLATE_LIST_TEST_CASE("with objects of one size no policy hits more than the clairvoyant", "",
                        kv::eviction_policies) {
    for (std::uint64_t seed = 300; seed < 320; ++seed) {
        const std::uint64_t capacity = 1 + seed % 30;
        INFO("seed " << seed << ", capacity " << capacity);
        const auto accesses = random_accesses(seed, 1000, 1);
        const auto next = next_of(accesses);
        bench::object_replay<TestType> replay({}, capacity, capacity);
        bench::object_clairvoyant bound(capacity);
        bench::infinite_replay infinite(bench::prefill_work{});
        for (std::size_t i = 0; i < accesses.size(); ++i) {
            replay.run(accesses[i]);
            bound.run(accesses[i], next.times()[i]);
            infinite.run(accesses[i]);
            REQUIRE(replay.bytes() <= capacity);
        }
        CHECK(replay.counts().hits <= bound.counts().hits);
        CHECK(bound.counts().hits <= infinite.counts().hits);
        CHECK(infinite.counts().misses() == next.distinct());
    }
}

TEST_CASE("what is larger than the cache passes by") {
    bench::object_replay<kv::eviction::lru> replay({}, 10, 4);
    bench::object_clairvoyant bound(10);
    for (const bench::object_access& access : {bench::object_access{0, 1, 6}, {1, 2, 11}, {2, 1, 6}, {3, 2, 11}}) {
        const bool hit = replay.run(access);
        CHECK(hit == (access.seconds == 2));
        CHECK(bound.run(access, access.seconds < 2 ? static_cast<std::uint32_t>(access.seconds) + 2
                                                   : bench::next_uses::never) == hit);
    }
    CHECK(replay.counts().hit_tokens == 6);
    CHECK(replay.counts().tokens == 34);
}
