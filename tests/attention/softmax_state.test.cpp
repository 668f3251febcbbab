// SPDX-License-Identifier: MIT
#include <kvcache/attention/softmax_state.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
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

using kv::detail::max_queries;
using kv::detail::most_tiles;
using numbers::same_bits;

namespace {

struct running {
    std::vector<float> numbers;
    explicit running(std::size_t count) : numbers(count * kv::softmax_state::numbers(16)) {
        for (std::size_t i = 0; i < count; ++i)
            at(i).clear();
    }
    [[nodiscard]] kv::softmax_state at(std::size_t i) {
        return {numbers.data() + i * kv::softmax_state::numbers(16), 16};
    }
};

void fill(kv::detail::tile_weights& weights, std::uint64_t seed) {
    weights = {};
    for (std::size_t i = 0; i < max_queries; ++i)
        for (std::size_t t = 0; t < most_tiles; ++t)
            for (std::size_t lane = 0; lane < 16; ++lane) {
                float& x = weights.lanes[i][t][lane];
                x = 30.0f * numbers::uniform(seed, (i * most_tiles + t) * 16 + lane);
                if (seed % 5 == 1 && lane == 3)
                    x = -numbers::infinity;
                if (seed % 5 == 2 && i == 1)
                    x = -numbers::infinity;
            }
}

} // namespace

TEST_CASE("tiles that are weighed together weigh what each weighs alone") {
    std::array<kv::attention_tile, most_tiles> tiles;
    for (std::size_t t = 0; t < most_tiles; ++t)
        tiles[t] = {.first = 0, .last = 16, .position = t * 16};
    for (std::size_t count = 1; count <= max_queries; ++count) {
        running together(count), alone(count);
        for (std::uint64_t seed = 0; seed < 20; ++seed) {
            kv::detail::tile_weights a, b;
            fill(a, seed), fill(b, seed);
            std::size_t calls = 0;
            kv::detail::softmax_full_tile(
                a, count, [&](std::size_t i) { return together.at(i); }, [&] { ++calls; });
            REQUIRE(calls == count);
            for (std::size_t i = 0; i < count; ++i)
                for (std::size_t t = 0; t < most_tiles; ++t)
                    kv::detail::softmax_tile(b, i, t, tiles[t], {0, 1000}, alone.at(i));
            for (std::size_t i = 0; i < count; ++i) {
                for (std::size_t t = 0; t < most_tiles; ++t) {
                    for (std::size_t lane = 0; lane < 16; ++lane)
                        REQUIRE(same_bits(a.lanes[i][t][lane], b.lanes[i][t][lane]));
                    if (!alone.at(i).empty())
                        REQUIRE(same_bits(a.rescale[i][t], b.rescale[i][t]));
                    if (a.rescale[i][t] != 1.0f)
                        REQUIRE(a.rescaled[t]);
                }
                for (std::size_t n = 0; n < kv::softmax_state::numbers(16); ++n)
                    REQUIRE(same_bits(together.at(i).sums()[n], alone.at(i).sums()[n]));
            }
        }
    }
}

TEST_CASE("lanes that are not there, or are not seen, weigh nothing") {
    kv::detail::tile_weights weights;
    fill(weights, 0);
    std::array<float, 16> mask{};
    mask[6] = -numbers::infinity;
    running states(1);
    const kv::attention_tile tile{.first = 2, .last = 12, .position = 5, .mask = mask.data()};
    kv::detail::softmax_tile(weights, 0, 0, tile, {0, 11}, states.at(0)); // lanes 2 to 8
    for (std::size_t lane = 0; lane < 16; ++lane)
        CHECK((weights.lanes[0][0][lane] > 0.0f) == (lane >= 2 && lane <= 8 && lane != 6));
    const float before = weights.lanes[0][1][0];
    kv::detail::softmax_tile(weights, 0, 1, tile, {0, 4}, states.at(0)); // sees none
    CHECK(weights.rescale[0][1] == 1.0f);
    CHECK(same_bits(weights.lanes[0][1][0], before));
}
