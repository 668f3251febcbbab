// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

namespace numbers {

/// A hash of (seed, index), the same on every machine.
inline std::uint64_t hashed(std::uint64_t seed, std::uint64_t index) {
    std::uint64_t x = seed * 0x9e3779b97f4a7c15u + index + 0x632be59bd9b4e019u;
    for (int round = 0; round < 2; ++round) {
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        x ^= x >> 31;
    }
    return x;
}

/// A value in [-1, 1), an integer times 2^-23: exact in every build.
inline float uniform(std::uint64_t seed, std::uint64_t index) {
    const auto whole = static_cast<std::int32_t>(hashed(seed, index) >> 40) - (1 << 23);
    return static_cast<float>(whole) * 0x1p-23f;
}

/// `size` such values, times a power of two.
inline std::vector<float> uniforms(std::uint64_t seed, std::size_t size, float power = 1.0f) {
    std::vector<float> made(size);
    for (std::size_t i = 0; i < size; ++i)
        made[i] = uniform(seed, i) * power;
    return made;
}

inline bool same_bits(float x, float y) {
    return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
}

inline bool same_bits(std::span<const float> x, std::span<const float> y) {
    return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size_bytes()) == 0;
}

/// Error of a float in ulp.
inline double ulps(float got, double truth) {
    int exponent = 0;
    std::frexp(truth, &exponent);
    return std::abs(static_cast<double>(got) - truth) / std::ldexp(1.0, std::max(exponent, -125) - 24);
}

inline constexpr float infinity = std::numeric_limits<float>::infinity();
inline constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

} // namespace numbers
