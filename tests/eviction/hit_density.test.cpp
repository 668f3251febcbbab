// SPDX-License-Identifier: MIT
#include <kvcache/eviction/hit_density.hpp>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("before anything is learned the young and the soon hit are dear") {
    const kv::eviction::hit_density density(100);
    CHECK(density.young());
    CHECK(density.at(3, 0) > density.at(3, 1));
    CHECK(density.at(4, 1) > density.at(3, 1));
}

TEST_CASE("groups are powers of two, the shortest ages highest") {
    const kv::eviction::hit_density density(100);
    CHECK(density.ages() == 256);
    CHECK(density.group(0) == 15);
    CHECK(density.group(1) == 8);
    CHECK(density.group(2) == 7);
    CHECK(density.group(3) == 7);
    CHECK(density.group(255) == 1);
    CHECK(density.group(256) == 0);
    CHECK(density.group(512) == 0);
}

TEST_CASE("density is the hits to come by the time to come") {
    kv::eviction::hit_density density(64); // updates every 1,024 uses
    for (int event = 0; event < 300; ++event) {
        density.hit(2, 1);
        density.left(2, 3);
    }
    for (int use = 0; use < 1024; ++use)
        density.pass(10);
    // At age 3: no hits, one of two entries is evicted. At age 1: half are hit at once, half stay for 3 steps.
    CHECK(density.at(2, 3) == Approx(0.0));
    CHECK(density.at(2, 1) == Approx(300.0 / (300.0 + 300.0 + 600.0)));
    CHECK(density.at(2, 0) == Approx(300.0 / 1800.0));
    CHECK(density.at(5, 0) == Approx(0.0)); // no events there
}

TEST_CASE("ages keep their meaning when their steps change") {
    kv::eviction::hit_density density(1024); // a step is 128 uses; updates every 2^14
    const auto rounds = [&](int count) {
        for (int use = 0; use < count << 14; ++use)
            density.pass(64); // few entries: a step is 8 uses from the sixth round on
    };
    rounds(5);
    CHECK(density.age(density.now() - 127) == 0);
    for (int event = 0; event < 1000; ++event)
        density.hit(0, 1); // 128 to 255 uses old: 16 to 31 of the new steps
    rounds(1);
    CHECK(density.age(density.now() - 7) == 0);
    CHECK(density.age(density.now() - 8) == 1);
    CHECK(density.at(0, 31) == Approx(1.0));
    CHECK(density.at(0, 16) == Approx(16.0 / (16.0 * 17.0 / 2.0)));
    CHECK(density.at(0, 32) == Approx(0.0));
}
