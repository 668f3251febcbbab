// SPDX-License-Identifier: MIT
#include <kvcache/kernel/portable_math.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernel/numbers.hpp"
#include <catch2/catch.hpp>

namespace portable_math = kvcache::portable_math;

namespace {

// A value in [0, 1) with 53 bits.
double fraction(std::uint64_t seed, std::uint64_t index) {
    return static_cast<double>(numbers::hashed(seed, index) >> 11) * 0x1p-53;
}

double relative(double got, long double truth) {
    return static_cast<double>(std::abs((static_cast<long double>(got) - truth) / truth));
}

} // namespace

TEST_CASE("log is accurate over all normal numbers") {
    double worst = 0.0;
    for (std::uint64_t i = 0; i < 200000; ++i) {
        const double x = std::ldexp(1.0 + fraction(1, i), static_cast<int>(i % 2040) - 1020);
        worst = std::max(worst, relative(portable_math::log(x), std::log(static_cast<long double>(x))));
    }
    for (std::uint64_t i = 1; i < 20000; ++i) { // near one, where the logarithm is small
        const double x = 1.0 + (fraction(2, i) - 0.5) * std::ldexp(1.0, -static_cast<int>(i % 40));
        if (x != 1.0)
            worst = std::max(worst, relative(portable_math::log(x), std::log(static_cast<long double>(x))));
    }
    INFO(worst);
    CHECK(worst < 1e-15);
    CHECK(portable_math::log(1.0) == 0.0);
}

TEST_CASE("exp in double is accurate to 700 either way") {
    double worst = 0.0;
    for (std::uint64_t i = 0; i < 200000; ++i) {
        const double x = (fraction(3, i) - 0.5) * (i % 2 == 0 ? 1400.0 : 2.0);
        worst = std::max(worst, relative(portable_math::exp(x), std::exp(static_cast<long double>(x))));
    }
    INFO(worst);
    CHECK(worst < 1e-15);
    CHECK(portable_math::exp(0.0) == 1.0);
}

TEST_CASE("pow is accurate where RoPE uses it") {
    double worst = 0.0;
    for (const double theta : {2.0, 10000.0, 500000.0, 1000000.0, 1e15})
        for (int dim : {8, 24, 64, 80, 128, 256})
            for (int i = 0; i < dim / 2; ++i) {
                const double exponent = -2.0 * i / dim;
                const long double truth = std::pow(static_cast<long double>(theta), static_cast<long double>(exponent));
                worst = std::max(worst, relative(portable_math::power(theta, exponent), truth));
            }
    INFO(worst);
    CHECK(worst < 1e-14);
}

TEST_CASE("sine and cosine are accurate for angles up to 2^30") {
    double worst = 0.0;
    for (std::uint64_t i = 0; i < 200000; ++i) {
        const double size = std::ldexp(1.0, static_cast<int>(i % 61) - 30);
        const double x = (2.0 * fraction(4, i) - 1.0) * size;
        const auto got = portable_math::sincos(x);
        const long double sine = std::sin(static_cast<long double>(x)), cosine = std::cos(static_cast<long double>(x));
        worst = std::max({worst, static_cast<double>(std::abs(static_cast<long double>(got.sine) - sine)),
                          static_cast<double>(std::abs(static_cast<long double>(got.cosine) - cosine))});
    }
    INFO(worst);
    CHECK(worst < 1e-15);
    CHECK(portable_math::sincos(0.0).sine == 0.0);
    CHECK(portable_math::sincos(0.0).cosine == 1.0);
}

TEST_CASE("sine and cosine keep their symmetries, bit for bit") {
    for (std::uint64_t i = 0; i < 2000; ++i) {
        const double x = fraction(5, i) * 1e6;
        CHECK(portable_math::sincos(-x).sine == -portable_math::sincos(x).sine);
        CHECK(portable_math::sincos(-x).cosine == portable_math::sincos(x).cosine);
    }
}

TEST_CASE("sine and cosine hold close to multiples of a quarter turn") {
    for (int n = 1; n < 4000; ++n) {
        const double x = n * 1.5707963267948966;
        const auto got = portable_math::sincos(x);
        CHECK(std::abs(got.sine - static_cast<double>(std::sin(static_cast<long double>(x)))) < 1e-15);
        CHECK(std::abs(got.cosine - static_cast<double>(std::cos(static_cast<long double>(x)))) < 1e-15);
    }
}
