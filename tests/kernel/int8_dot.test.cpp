// SPDX-License-Identifier: MIT
#include <kvcache/kernel/int8_dot.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernel/numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using sixteen = std::array<std::int64_t, 16>;

// Result of the dot-product instruction for levels. weights: (fours, 16, 4), x: (fours, 4)
sixteen dots(const std::vector<std::int8_t>& weights, const std::vector<int>& x) {
    using namespace kv::detail;
    std::vector<int8_activation> levels;
    for (const int level : x)
        levels.push_back(static_cast<int8_activation>(level + activation_offset));
    int8_vector sums[int8_parts];
    for (auto& sum : sums)
        sum = no_sums();
    for (std::size_t four = 0; four < x.size() / 4; ++four)
        for (std::size_t part = 0; part < int8_parts; ++part)
            sums[part] =
                add_dots(sums[part], load_weights(weights.data() + four * 64, part), load_four(&levels[four * 4]));
    std::int32_t stored[16];
    store_sums(sums, stored);
    sixteen found{};
    for (std::size_t output = 0; output < 16; ++output) {
        std::int32_t of_weights = 0;
        for (std::size_t k = 0; k < x.size(); ++k)
            of_weights += weights[(k / 4 * 16 + output) * 4 + k % 4];
        found[output] = stored[output] - activation_offset * of_weights;
    }
    return found;
}

sixteen exact(const std::vector<std::int8_t>& weights, const std::vector<int>& x) {
    sixteen sums{};
    for (std::size_t k = 0; k < x.size(); ++k)
        for (std::size_t output = 0; output < 16; ++output)
            sums[output] += std::int64_t{x[k]} * weights[(k / 4 * 16 + output) * 4 + k % 4];
    return sums;
}

int level(std::uint64_t seed, std::size_t index) {
    return static_cast<int>(numbers::hashed(seed, index) % 255) - 127;
}

} // namespace

TEST_CASE("dot products of four bytes are exact for levels of any size") {
    for (const std::size_t fours : {1u, 2u, 3u, 16u, 145u}) {
        std::vector<std::int8_t> weights(fours * 64);
        std::vector<int> x(fours * 4);
        for (std::uint64_t seed = 0; seed < 20; ++seed) {
            for (std::size_t i = 0; i < weights.size(); ++i)
                weights[i] = static_cast<std::int8_t>(level(seed, i));
            for (std::size_t i = 0; i < x.size(); ++i)
                x[i] = level(seed + 1000, i);
            CHECK(dots(weights, x) == exact(weights, x));
        }
    }
}

TEST_CASE("every input is multiplied by its own weights") {
    for (std::size_t k = 0; k < 8; ++k)
        for (std::size_t output = 0; output < 16; ++output) {
            std::vector<std::int8_t> weights(128);
            std::vector<int> x(8);
            weights[(k / 4 * 16 + output) * 4 + k % 4] = -101;
            x[k] = 113;
            sixteen wanted{};
            wanted[output] = -101 * 113;
            CHECK(dots(weights, x) == wanted);
        }
}

TEST_CASE("the largest levels of the longest row saturate and overflow nowhere") {
    constexpr std::size_t inputs = 65536;
    for (const int weight : {-127, 127})
        for (const int activation : {-127, 127}) {
            const std::vector<std::int8_t> weights(inputs * 16, static_cast<std::int8_t>(weight));
            sixteen wanted;
            wanted.fill(std::int64_t{inputs} * weight * activation);
            CHECK(dots(weights, std::vector<int>(inputs, activation)) == wanted);
        }
}

TEST_CASE("the sums of the rows that run together leave registers for what they are made of") {
    using namespace kv::detail;
#if defined(__AVX512VNNI__)
    CHECK(int8_rows_together * int8_panels_together * int8_parts + int8_panels_together <= 32 - 2);
    CHECK(2 * int8_panels_of_one * int8_parts <= 32 - 2);
#elif defined(__AVX2__)
    CHECK(int8_rows_together * int8_panels_together * int8_parts <= 16 - 3);
#else
    CHECK(int8_rows_together >= 1);
#endif
}
