// SPDX-License-Identifier: MIT
#include <kvcache/kernel/largest.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernel/numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using numbers::same_bits;

namespace {

// Four vectors with some lanes NaN, infinite, or zero of either sign.
std::array<std::array<float, 16>, 4> some(std::uint64_t seed) {
    std::array<std::array<float, 16>, 4> made{};
    for (std::size_t i = 0; i < 64; ++i) {
        float& x = made[i / 16][i % 16];
        x = numbers::uniform(seed, i);
        if (seed % 3 != 0 && i % 7 == seed % 7)
            x = i % 2 == 0 ? -0.0f : 0.0f;
        if (seed % 4 == 1 && i % 11 == seed % 11)
            x = numbers::not_a_number;
        if (seed % 8 == 2)
            x = -numbers::infinity;
    }
    return made;
}

} // namespace

TEST_CASE("the largest of several at once is that of each alone, whatever the lanes hold") {
    for (std::uint64_t seed = 0; seed < 500; ++seed) {
        const auto from = some(seed);
        kv::f32x16 x[4];
        for (std::size_t i = 0; i < 4; ++i)
            x[i] = kv::f32x16::load(from[i].data());
        float most[4];
        kv::largest(x, most);
        for (std::size_t i = 0; i < 4; ++i)
            REQUIRE(same_bits(most[i], kv::largest(x[i])));
    }
}

TEST_CASE("the sums of several at once are those of each alone") {
    for (std::uint64_t seed = 0; seed < 500; ++seed) {
        const auto from = some(seed);
        kv::f32x16 x[4];
        for (std::size_t i = 0; i < 4; ++i)
            x[i] = kv::f32x16::load(from[i].data());
        float all[4];
        kv::sum(x, all);
        for (std::size_t i = 0; i < 4; ++i) {
            const float alone = kv::sum(x[i]);
            REQUIRE((same_bits(all[i], alone) || (all[i] != all[i] && alone != alone)));
        }
    }
}

TEST_CASE("what rises is the largest so far, and by how much") {
    for (std::uint64_t seed = 0; seed < 500; ++seed) {
        const auto from = some(seed);
        kv::f32x16 x[4];
        for (std::size_t i = 0; i < 4; ++i)
            x[i] = kv::f32x16::load(from[i].data());
        for (float before : {-numbers::infinity, -0.0f, 0.0f, 0.9f, 2.0f}) {
            float tops[4], falls[4];
            const float last = kv::rising(x, before, tops, falls);
            for (std::size_t i = 0; i < 4; ++i) {
                const float most = kv::largest(x[i]), top = most > before ? most : before;
                REQUIRE(same_bits(tops[i], top));
                REQUIRE((same_bits(falls[i], before - top) || before == -numbers::infinity));
                before = top;
            }
            REQUIRE(same_bits(last, before));
        }
    }
}
