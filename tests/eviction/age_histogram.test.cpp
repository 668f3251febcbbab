// SPDX-License-Identifier: MIT
#include <kvcache/eviction/age_histogram.hpp>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("before it has learned, nothing is worth anything") {
    kv::eviction::age_histogram<2> ages;
    ages.begin(0);
    ages.use(0, 100);
    for (const std::uint32_t age : {0u, 1u, 7u, 1000u, 0xffffffffu})
        CHECK(ages.worth(0, age) == 0.0);
}

TEST_CASE("an entry that is reused at one age is worth more the nearer that age is, and little after it") {
    kv::eviction::age_histogram<2> ages;
    for (int i = 0; i < 1000; ++i) {
        ages.begin(0);
        ages.use(0, 1000);
    }
    ages.learn(1.0);
    double before = 0.0;
    for (std::uint32_t age = 1; age < 768; age *= 2) {
        CHECK(ages.worth(0, age) >= before);
        before = ages.worth(0, age);
    }
    // All entries return within the 1024 uses at which the bin of 1000 ends.
    CHECK(ages.worth(0, 1) == Approx(1.0 / 1024.0).epsilon(0.3));
    CHECK(ages.worth(0, 4096) < before / 100.0);
}

TEST_CASE("a class that returns more often is worth more, in proportion") {
    kv::eviction::age_histogram<3> ages;
    for (int i = 0; i < 10000; ++i) {
        ages.begin(0);
        ages.begin(1);
        if (i % 10 == 0)
            ages.use(0, 500);
        if (i % 2 == 0)
            ages.use(1, 500);
    }
    ages.learn(1.0);
    // Half of the entries have returned by then, so the time until a use or the horizon is shorter too.
    CHECK(ages.worth(1, 2) / ages.worth(0, 2) == Approx(5.0).epsilon(0.1));
    INFO("a class without entries is as all are together");
    CHECK(ages.worth(2, 2) > ages.worth(0, 2));
    CHECK(ages.worth(2, 2) < ages.worth(1, 2));
}

TEST_CASE("what was learned fades") {
    kv::eviction::age_histogram<1> ages;
    const auto see = [&](std::uint32_t age) {
        for (int i = 0; i < 1000; ++i) {
            ages.begin(0);
            ages.use(0, age);
        }
        ages.learn(0.5);
    };
    see(16);
    const double early = ages.worth(0, 1);
    for (int round = 0; round < 20; ++round)
        see(4096);
    CHECK(ages.worth(0, 1) < early / 20.0);
}
