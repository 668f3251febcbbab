// SPDX-License-Identifier: MIT
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/eviction/slot_lists.hpp>
#include <kvcache/testing/violations.hpp>

#include <algorithm>
#include <list>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("a ghost list is a list of keys that forgets its oldest") {
    struct plain_ghost {
        std::uint64_t key;
        std::size_t bytes;
        std::uint32_t mark;
    };
    for (std::uint64_t seed = 0; seed < 30; ++seed) {
        INFO("seed " << seed);
        kv::testing::detail::choices choose(seed);
        const std::size_t most = choose.below(20);
        const std::uint64_t stride = seed % 2 == 0 ? 1 : std::uint64_t{1} << 40; // keys that differ in few bits
        kv::eviction::ghost_list ghosts(most, 1 << 20, kv::eviction::ghost_list::marks::kept);
        std::list<plain_ghost> plain; // newest first
        for (std::uint32_t round = 0; round < 4000; ++round) {
            const std::uint64_t key = choose.below(40) * stride;
            const auto at = kvcache::ranges::find(plain, key, &plain_ghost::key);
            REQUIRE(ghosts.contains(key) == (at != plain.end()));
            if (at == plain.end()) {
                const std::size_t bytes = choose.below(1000);
                REQUIRE_FALSE(ghosts.take(key));
                ghosts.push(key, {.bytes = bytes, .mark = round});
                plain.push_front({key, bytes, round});
                if (plain.size() > most)
                    plain.pop_back();
            } else if (choose.one_in(2)) {
                const auto taken = ghosts.take(key);
                REQUIRE(taken);
                REQUIRE(taken->bytes == at->bytes);
                REQUIRE(taken->mark == at->mark);
                plain.erase(at);
            } else if (choose.one_in(4)) {
                REQUIRE(ghosts.oldest().mark == plain.back().mark);
                REQUIRE(ghosts.pop().bytes == plain.back().bytes);
                plain.pop_back();
            }
            std::size_t bytes = 0;
            for (const plain_ghost& one : plain)
                bytes += one.bytes;
            REQUIRE(ghosts.size() == plain.size());
            REQUIRE(ghosts.bytes() == bytes);
        }
    }
}

TEST_CASE("a list of many ghosts knows each of them and no other") {
    kv::eviction::ghost_list ghosts(100'000, 1);
    for (std::uint64_t key = 0; key < 150'000; ++key)
        ghosts.push(key, {});
    for (std::uint64_t key = 0; key < 250'000; ++key)
        if (ghosts.contains(key) != (key >= 50'000 && key < 150'000))
            FAIL("key " << key);
}

TEST_CASE("beyond 4 GiB ghosts count in a coarser grain") {
    const std::size_t gibibyte = std::size_t{1} << 30;
    kv::eviction::ghost_list ghosts(10, 64 * gibibyte);
    for (std::uint64_t key = 0; key < 8; ++key)
        ghosts.push(key, {.bytes = 8 * gibibyte});
    CHECK(ghosts.bytes() == 64 * gibibyte);
    ghosts.push(9, {.bytes = 1});
    CHECK(ghosts.bytes() > 64 * gibibyte);
    CHECK(ghosts.bytes() <= 64 * gibibyte + 128);
}

TEST_CASE("a key that leaves twice has two ghosts, the newer taken first") {
    kv::eviction::ghost_list ghosts(3, 100, kv::eviction::ghost_list::marks::kept);
    ghosts.push(7, {.bytes = 1, .mark = 1});
    ghosts.push(8, {.bytes = 1, .mark = 2});
    ghosts.push(7, {.bytes = 1, .mark = 3});
    CHECK(ghosts.size() == 3);
    CHECK(ghosts.take(7)->mark == 3);
    ghosts.push(7, {.bytes = 1, .mark = 4});
    CHECK(ghosts.pop().mark == 1); // the oldest is removed first, even if another has its key
    CHECK(ghosts.take(7)->mark == 4);
    CHECK_FALSE(ghosts.contains(7));
    CHECK(ghosts.contains(8));
}
