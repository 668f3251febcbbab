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
