// SPDX-License-Identifier: MIT
#include <kvcache/eviction/frequency_sketch.hpp>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("a frequency sketch counts a key, and never too little") {
    kv::eviction::frequency_sketch sketch(1000);
    for (std::uint64_t key = 0; key < 100; ++key)
        for (std::uint64_t use = 0; use < key % 20; ++use)
            sketch.add(key);
    std::size_t exact = 0;
    for (std::uint64_t key = 0; key < 100; ++key) {
        const auto uses = static_cast<std::uint32_t>(key % 20 < 16 ? key % 20 : 16);
        REQUIRE(sketch.uses(key) >= uses);
        exact += sketch.uses(key) == uses;
    }
    CHECK(exact >= 95);
}

TEST_CASE("after ten uses a slot what was counted is halved") {
    kv::eviction::frequency_sketch sketch(100);
    for (int use = 0; use < 9; ++use)
        sketch.add(7);
    CHECK(sketch.uses(7) == 9);
    for (std::uint64_t key = 1000; key < 1990; ++key)
        sketch.add(key);
    CHECK(sketch.uses(7) == 9);
    sketch.add(5000);
    CHECK(sketch.uses(7) == 4); // eight in the sketch, halved; the doorkeeper is clear
    CHECK(sketch.uses(5000) == 0);
}

TEST_CASE("few of many keys are taken for others") {
    kv::eviction::frequency_sketch sketch(10'000);
    for (std::uint64_t key = 0; key < 10'000; ++key)
        sketch.add(key);
    std::size_t strangers = 0;
    for (std::uint64_t key = 1'000'000; key < 1'010'000; ++key)
        strangers += sketch.uses(key) > 0;
    CHECK(strangers < 500);
}
