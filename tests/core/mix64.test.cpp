// SPDX-License-Identifier: MIT
#include <kvcache/core/digest.hpp>

#include <cstdint>
#include <cstdlib>

#include <catch2/catch.hpp>

TEST_CASE("every bit of a number reaches every bit of the mixed one") {
    CHECK(kvcache::mix64(0) == 0);
    CHECK(kvcache::mix64(1) == 0xb456bcfc34c2cb2cull); // murmur3's fmix64
    for (int from = 0; from < 64; ++from) {
        int flips[64] = {};
        constexpr int numbers = 2000;
        for (std::uint64_t n = 0; n < numbers; ++n) {
            const std::uint64_t x = n * 0x9e3779b97f4a7c15ull;
            const std::uint64_t changed = kvcache::mix64(x) ^ kvcache::mix64(x ^ std::uint64_t{1} << from);
            for (int to = 0; to < 64; ++to)
                flips[to] += static_cast<int>(changed >> to & 1);
        }
        for (int to = 0; to < 64; ++to) {
            CAPTURE(from, to);
            CHECK(std::abs(flips[to] - numbers / 2) < numbers / 10);
        }
    }
}
