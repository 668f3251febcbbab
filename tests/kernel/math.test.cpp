// SPDX-License-Identifier: MIT
#include <kvcache/kernel/math.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernel/numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using numbers::same_bits;

namespace {

float silu_one(float x) {
    std::array<float, 16> lane{};
    kv::silu(kv::f32x16::broadcast(x)).store(lane.data());
    return lane[11];
}

// Largest error of `kernel` over every `step`-th float of the same sign between two magnitudes.
template <class Kernel, class Truth>
double worst(float least, float most, std::uint32_t step, Kernel kernel, Truth truth) {
    double found = 0.0;
    std::array<float, 16> in{}, out{};
    const auto last = std::bit_cast<std::uint32_t>(most);
    for (auto bits = std::bit_cast<std::uint32_t>(least); bits + 15 * step <= last; bits += 16 * step) {
        for (std::uint32_t i = 0; i < 16; ++i)
            in[i] = std::bit_cast<float>(bits + i * step);
        kernel(kv::f32x16::load(in.data())).store(out.data());
        for (std::size_t i = 0; i < 16; ++i)
            found = std::max(found, numbers::ulps(out[i], truth(static_cast<double>(in[i]))));
    }
    return found;
}

} // namespace

TEST_CASE("exp is within 2 units in the last place from -87 to 88") {
    const auto kernel = [](const kv::f32x16& x) { return kv::exp(x); };
    const auto truth = [](double x) { return std::exp(x); };
    const double up = worst(0x1p-30f, 88.0f, 2003, kernel, truth);
    const double down = worst(-0x1p-30f, -87.0f, 2003, kernel, truth);
    INFO("above zero " << up << ", below " << down);
    CHECK(up <= 2.0);
    CHECK(down <= 2.0);
}

TEST_CASE("exp is defined at its edges") {
    CHECK(kv::exp_one(0.0f) == 1.0f);
    CHECK(kv::exp_one(-0.0f) == 1.0f);
    CHECK(kv::exp_one(0x1p-149f) == 1.0f);
    CHECK(kv::exp_one(-0x1p-127f) == 1.0f);
    CHECK(numbers::ulps(kv::exp_one(-87.0f), std::exp(-87.0)) <= 2.0);
    CHECK(same_bits(kv::exp_one(std::nextafter(-87.0f, -88.0f)), 0.0f));
    CHECK(same_bits(kv::exp_one(-1e30f), 0.0f));
    CHECK(same_bits(kv::exp_one(-numbers::infinity), 0.0f));
    CHECK(numbers::ulps(kv::exp_one(88.0f), std::exp(88.0)) <= 2.0);
    CHECK(kv::exp_one(numbers::infinity) == kv::exp_one(88.0f));
    CHECK(same_bits(kv::exp_one(numbers::not_a_number), 0.0f));
}

TEST_CASE("exp of one number is a lane of exp") {
    std::array<float, 16> in{}, out{};
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
        std::ranges::copy(numbers::uniforms(seed, 16, 64.0f), in.begin());
        kv::exp(kv::f32x16::load(in.data())).store(out.data());
        for (std::size_t i = 0; i < 16; ++i)
            REQUIRE(same_bits(out[i], kv::exp_one(in[i])));
    }
}

TEST_CASE("silu is within 4 units in the last place, and small far below zero") {
    const auto kernel = [](const kv::f32x16& x) { return kv::silu(x); };
    const auto truth = [](double x) { return x / (1.0 + std::exp(-x)); };
    CHECK(worst(0x1p-30f, 1e30f, 4001, kernel, truth) <= 4.0);
    CHECK(worst(-0x1p-30f, -86.0f, 4001, kernel, truth) <= 4.0);

    CHECK(silu_one(0.0f) == 0.0f);
    for (const float low : {-88.0f, -1000.0f, -1e38f, -numbers::infinity})
        CHECK(std::abs(silu_one(low)) < 1e-35f);
    CHECK(silu_one(numbers::infinity) == numbers::infinity);
    CHECK(std::isnan(silu_one(numbers::not_a_number)));
}

TEST_CASE("rms_norm agrees with its double reference at every size") {
    for (const std::size_t size : {1u, 2u, 15u, 16u, 17u, 24u, 31u, 33u, 64u, 70u, 128u, 576u, 1000u, 4096u}) {
        const auto x = numbers::uniforms(size, size, 4.0f), weight = numbers::uniforms(size + 1, size);
        std::vector<float> out(size);
        kv::rms_norm(x, weight, 1e-5f, out);
        double squares = 0.0;
        for (const float v : x)
            squares += static_cast<double>(v) * static_cast<double>(v);
        const double scale = 1.0 / std::sqrt(squares / static_cast<double>(size) + static_cast<double>(1e-5f));
        for (std::size_t i = 0; i < size; ++i) {
            const double truth = static_cast<double>(x[i]) * scale * static_cast<double>(weight[i]);
            REQUIRE(std::abs(static_cast<double>(out[i]) - truth) <= 1e-6 * std::abs(truth) + 1e-30);
        }
        auto in_place = x;
        kv::rms_norm(in_place, weight, 1e-5f, in_place);
        REQUIRE(same_bits(in_place, out));
    }
}

TEST_CASE("rms_norm of zeros is zeros") {
    const std::vector<float> x(40), weight(40, 1.0f);
    std::vector<float> out(40, 7.0f);
    kv::rms_norm(x, weight, 1e-6f, out);
    CHECK(std::ranges::all_of(out, [](float v) { return v == 0.0f; }));
}

TEST_CASE("the norm's sum runs in 16 lanes ascending and ends in one tree") {
    const auto x = numbers::uniforms(3, 83, 16.0f);
    std::array<float, 16> lane{};
    for (std::size_t i = 0; i < x.size(); ++i)
        lane[i % 16] = std::fma(x[i], x[i], lane[i % 16]);
    for (std::size_t half = 8; half > 0; half /= 2)
        for (std::size_t i = 0; i < half; ++i)
            lane[i] += lane[i + half];
    const float scale = 1.0f / std::sqrt(lane[0] / 83.0f + 1e-6f);
    const std::vector<float> ones(83, 1.0f);
    std::vector<float> out(83);
    kv::rms_norm(x, ones, 1e-6f, out);
    for (std::size_t i = 0; i < x.size(); ++i)
        CHECK(same_bits(out[i], x[i] * scale));
}

TEST_CASE("gated_silu and add_to treat each number alone, at every size, also in place") {
    for (std::size_t size = 1; size <= 50; ++size) {
        const auto gate = numbers::uniforms(size, size, 8.0f), up = numbers::uniforms(size + 100, size);
        std::vector<float> out(size + 1, 5.0f);
        kv::gated_silu(gate, up, {out.data(), size});
        for (std::size_t i = 0; i < size; ++i)
            REQUIRE(same_bits(out[i], silu_one(gate[i]) * up[i]));
        REQUIRE(out[size] == 5.0f);
        auto in_place = gate;
        kv::gated_silu(in_place, up, in_place);
        REQUIRE(same_bits(in_place, {out.data(), size}));

        auto to = gate;
        to.push_back(5.0f);
        kv::add_to({to.data(), size}, up);
        for (std::size_t i = 0; i < size; ++i)
            REQUIRE(same_bits(to[i], gate[i] + up[i]));
        REQUIRE(to[size] == 5.0f);
    }
}

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
