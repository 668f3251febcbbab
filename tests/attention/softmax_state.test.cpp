// SPDX-License-Identifier: MIT
#include <kvcache/attention/softmax_state.hpp>

#include <cmath>
#include <cstddef>
#include <vector>

#include "kernel/numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

// The state of one position: its score and its value.
std::vector<float> of(float score, float value, std::size_t width) {
    std::vector<float> made(kv::softmax_state::numbers(width));
    const kv::softmax_state state(made.data(), width);
    state.clear();
    state.largest() = score;
    std::vector<float> weight(16);
    weight[3] = 1.0f;
    state.set_weight(kv::f32x16::load(weight.data()));
    std::fill_n(state.sums(), width, value);
    return made;
}

} // namespace

TEST_CASE("merged softmax states weigh values as one softmax does") {
    constexpr std::size_t width = 32;
    for (const float far : {-30.0f, -1.0f, 0.0f, 2.0f, 50.0f}) {
        auto a = of(1.0f, 3.0f, width), b = of(1.0f + far, -5.0f, width);
        const kv::softmax_state first(a.data(), width);
        first.merge({b.data(), width});
        std::vector<float> out(20);
        first.finish(20, out.data());
        const double e = std::exp(static_cast<double>(far)), truth = (3.0 - 5.0 * e) / (1.0 + e);
        for (const float x : out)
            CHECK(std::abs(static_cast<double>(x) - truth) < 2e-6);
    }
}

TEST_CASE("an empty softmax state changes nothing, and takes any other on bit for bit") {
    constexpr std::size_t width = 16;
    const auto one = of(-2.0f, 0.1f, width);
    auto some = one, none = of(0.0f, numbers::not_a_number, width), nothing = none;
    const kv::softmax_state state(some.data(), width), empty(none.data(), width);
    empty.forget();
    REQUIRE(empty.empty());
    state.merge(empty);
    CHECK(numbers::same_bits(some, one));
    empty.merge(state);
    CHECK(numbers::same_bits({none.data(), width + 17}, {one.data(), width + 17}));
    const kv::softmax_state cleared(nothing.data(), width);
    cleared.clear();
    CHECK(cleared.empty());
    CHECK(cleared.sums()[width - 1] == 0.0f);
}
