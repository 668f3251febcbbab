// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/platform/standard.hpp>

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI {

/// bfloat16 value: the upper half of a binary32.
struct bfloat16 {
    std::uint16_t bits = 0;

    friend bool operator==(const bfloat16&, const bfloat16&) = default;
};

/// IEEE binary16 value: a sign, 5 exponent bits, 10 fraction bits, subnormals.
struct half {
    std::uint16_t bits = 0;

    friend bool operator==(const half&, const half&) = default;
};

/// Number formats of weights and of stored rows. Each widens to float32 exactly.
template <class T>
concept weight_format = std::same_as<T, float> || std::same_as<T, bfloat16> || std::same_as<T, half>;

/// The short name of a number format: f32, bf16 or f16.
template <weight_format Number>
inline constexpr const char* format_name = std::same_as<Number, float>      ? "f32"
                                           : std::same_as<Number, bfloat16> ? "bf16"
                                                                            : "f16";

/// A float as it is.
[[nodiscard]] constexpr float widen(float number) noexcept {
    return number;
}

/// Converts a bfloat16 to float32. Exact for every bit pattern.
[[nodiscard]] constexpr float widen(bfloat16 number) noexcept {
    return bit_cast<float>(static_cast<std::uint32_t>(number.bits) << 16);
}

/// Converts a binary16 to float32. Exact, including zeros, subnormals and infinities; a NaN keeps its sign and payload
/// and becomes quiet, as in hardware conversions.
[[nodiscard]] constexpr float widen(half number) noexcept {
    const std::uint32_t sign = (number.bits & 0x8000u) << 16;
    const std::uint32_t exponent = (number.bits >> 10) & 0x1Fu;
    const std::uint32_t fraction = number.bits & 0x3FFu;
    if (exponent == 31)
        return bit_cast<float>(sign | (fraction == 0 ? 0x7F800000u : 0x7FC00000u) | fraction << 13);
    if (exponent != 0)
        return bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
    if (fraction == 0)
        return bit_cast<float>(sign);
    // fraction * 2^-24, normalized: the leading one moves to bit 10 and becomes implicit.
    const auto shift = static_cast<std::uint32_t>(std::countl_zero(fraction)) - 21;
    return bit_cast<float>(sign | (113 - shift) << 23 | ((fraction << shift) & 0x3FFu) << 13);
}

/// Rounds to the nearest bfloat16, ties to even. Larger magnitudes saturate to the largest finite value; NaN stays NaN.
[[nodiscard]] constexpr bfloat16 to_bfloat16(float number) noexcept {
    const auto bits = bit_cast<std::uint32_t>(number);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return {static_cast<std::uint16_t>(bits >> 16 | 0x40u)};
    const std::uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
    const std::uint32_t size = rounded & 0x7FFFu;
    return {static_cast<std::uint16_t>((rounded & 0x8000u) | (size < 0x7F7Fu ? size : 0x7F7Fu))};
}

/// Rounds to the nearest binary16, ties to even. Larger magnitudes saturate to the largest finite value; NaN stays NaN.
[[nodiscard]] constexpr half to_half(float number) noexcept {
    const auto bits = bit_cast<std::uint32_t>(number);
    const std::uint32_t sign = bits >> 16 & 0x8000u, size = bits & 0x7FFFFFFFu;
    if (size > 0x7F800000u)
        return {static_cast<std::uint16_t>(sign | 0x7E00u)};
    if (size >= 0x477FE000u) // 65504
        return {static_cast<std::uint16_t>(sign | 0x7BFFu)};
    if (size < 0x33000000u) // below half of the smallest subnormal
        return {static_cast<std::uint16_t>(sign)};
    // The fraction with its leading one, and the number of its bits to drop.
    const std::uint32_t exponent = size >> 23, fraction = (size & 0x7FFFFFu) | 0x800000u;
    const std::uint32_t shift = exponent >= 113 ? 13 : 126 - exponent;
    const std::uint32_t kept = fraction >> shift, rest = fraction & ((1u << shift) - 1), middle = 1u << (shift - 1);
    const std::uint32_t up = rest > middle || (rest == middle && (kept & 1u) != 0) ? 1 : 0;
    const std::uint32_t above = exponent >= 113 ? (exponent - 113) << 10 : 0;
    return {static_cast<std::uint16_t>(sign | (above + kept + up))};
}

/// Rounds to a number format as to_bfloat16 and to_half do; a float stays as it is.
template <weight_format Number>
[[nodiscard]] constexpr Number narrow(float number) noexcept {
    if constexpr (std::same_as<Number, bfloat16>)
        return to_bfloat16(number);
    else if constexpr (std::same_as<Number, half>)
        return to_half(number);
    else
        return number;
}

}} // namespace kvcache
