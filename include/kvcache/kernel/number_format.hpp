// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>

namespace kvcache {

/// A bfloat16: the upper half of a binary32.
struct bfloat16 {
    std::uint16_t bits = 0;

    friend bool operator==(const bfloat16&, const bfloat16&) = default;
};

/// An IEEE binary16: a sign, 5 exponent bits, 10 of fraction, subnormals.
struct half {
    std::uint16_t bits = 0;

    friend bool operator==(const half&, const half&) = default;
};

/// The number formats that weights are kept in. Each widens to float32 exactly.
template <class T>
concept weight_format = std::same_as<T, float> || std::same_as<T, bfloat16> || std::same_as<T, half>;

[[nodiscard]] constexpr float widen(float number) noexcept {
    return number;
}

/// The float32 that a bfloat16 stands for. Every pattern keeps its bits.
[[nodiscard]] constexpr float widen(bfloat16 number) noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(number.bits) << 16);
}

/// The float32 that a binary16 stands for. Exact for zeros, subnormals and infinities; a NaN keeps its sign and
/// payload and becomes quiet, as processors convert it.
[[nodiscard]] constexpr float widen(half number) noexcept {
    const std::uint32_t sign = (number.bits & 0x8000u) << 16;
    const std::uint32_t exponent = (number.bits >> 10) & 0x1Fu;
    const std::uint32_t fraction = number.bits & 0x3FFu;
    if (exponent == 31)
        return std::bit_cast<float>(sign | (fraction == 0 ? 0x7F800000u : 0x7FC00000u) | fraction << 13);
    if (exponent != 0)
        return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
    if (fraction == 0)
        return std::bit_cast<float>(sign);
    // fraction * 2^-24, normalised: the leading one moves to bit 10 and goes.
    const auto shift = static_cast<std::uint32_t>(std::countl_zero(fraction)) - 21;
    return std::bit_cast<float>(sign | (113 - shift) << 23 | ((fraction << shift) & 0x3FFu) << 13);
}

} // namespace kvcache
