// SPDX-License-Identifier: MIT
#include <kvcache/cache/page_index.hpp>

#include <catch2/catch.hpp>

namespace {
// Positions count from one, and are summed one by one.
double truth(double projections, double attention, std::size_t first, std::size_t rows) {
    double sum = 0.0;
    for (std::size_t row = 0; row < rows; ++row)
        sum += projections + attention * static_cast<double>(first + row + 1);
    return sum;
}
} // namespace

TEST_CASE("a host's projections and attention are found from prefills of several lengths") {
    kvcache::prefill_cost cost;
    for (const std::size_t rows : {16u, 100u, 1000u, 5000u, 30u})
        for (const std::size_t first : {0u, 48u, 2000u})
            cost.measure(first, rows, truth(2e-4, 3e-8, first, rows));
    for (const std::size_t first : {0u, 16u, 999u, 100'000u})
        CHECK(cost.seconds(first, 16) == Approx(truth(2e-4, 3e-8, first, 16)).epsilon(1e-6));
}

TEST_CASE("a cost is positive and no less for later rows, whatever was measured") {
    for (const double attention : {-1e-7, 0.0, 1e-9, 1.0}) {
        kvcache::prefill_cost cost;
        CHECK(cost.seconds(0, 16) == Approx(16e-4)); // nothing measured
        for (std::size_t n = 1; n < 40; ++n) {
            cost.measure(n * 37 % 200, n * 16, std::max(1e-6, truth(1e-5, attention, n * 37 % 200, n * 16)));
            CHECK(cost.seconds(0, 16) > 0.0);
            CHECK(cost.seconds(4096, 16) >= cost.seconds(0, 16));
        }
    }
    kvcache::prefill_cost alike; // equal prefills do not separate projections from attention
    for (int n = 0; n < 5; ++n)
        alike.measure(0, 64, 0.64);
    CHECK(alike.seconds(0, 16) == Approx(0.16));
    CHECK(alike.seconds(1600, 16) == Approx(0.16));
    alike.measure(0, 16, 0.0);
    CHECK(alike.seconds(0, 16) >= 0.0);
}

TEST_CASE("a host that became faster is believed in time") {
    kvcache::prefill_cost cost;
    for (int n = 0; n < 100; ++n)
        cost.measure(0, 64, 0.64);
    for (int n = 0; n < 500; ++n)
        cost.measure(0, 64, 0.064);
    CHECK(cost.seconds(0, 64) == Approx(0.064).epsilon(0.01));
}

TEST_CASE("a measurement without rows is a caller's mistake") {
    CHECK_THROWS_AS(kvcache::prefill_cost{}.measure(0, 0, 1.0), kvcache::contract_violation);
    CHECK_THROWS_AS(kvcache::prefill_cost{}.measure(0, 1, -1.0), kvcache::contract_violation);
}
