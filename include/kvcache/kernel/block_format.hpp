// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Formats of stored weights, with the type numbers of GGUF. All but the first three are quantised: a row is a sequence
/// of blocks of integer codes with shared scales.
enum class block_format : std::uint8_t {
    f32 = 0,     ///< IEEE binary32.
    f16 = 1,     ///< IEEE binary16.
    q4_0 = 2,    ///< 4-bit codes, one scale for 32 weights.
    q4_1 = 3,    ///< 4-bit codes, a scale and an offset for 32 weights.
    q5_0 = 6,    ///< 5-bit codes, one scale for 32 weights.
    q5_1 = 7,    ///< 5-bit codes, a scale and an offset for 32 weights.
    q8_0 = 8,    ///< 8-bit codes, one scale for 32 weights.
    q2_k = 10,   ///< 2-bit codes, 4-bit scales and offsets for 16 weights, scales of both for 256.
    q3_k = 11,   ///< 3-bit codes, 6-bit scales for 16 weights, a scale of them for 256.
    q4_k = 12,   ///< 4-bit codes, 6-bit scales and offsets for 32 weights, scales of both for 256.
    q5_k = 13,   ///< 5-bit codes, 6-bit scales and offsets for 32 weights, scales of both for 256.
    q6_k = 14,   ///< 6-bit codes, 8-bit scales for 16 weights, a scale of them for 256.
    iq4_nl = 20, ///< 4-bit indices of a table of 16 values, one scale for 32 weights.
    iq4_xs = 23, ///< The same table, 6-bit scales for 32 weights, a scale of them for 256.
    bf16 = 30,   ///< The upper half of a binary32.
    mxfp4 = 39,  ///< OCP MX: 4-bit floats, a power of two for 32 weights.
};

/// Every block format, by ascending type number.
inline constexpr std::array block_formats = {
    block_format::f32,    block_format::f16,    block_format::q4_0, block_format::q4_1,
    block_format::q5_0,   block_format::q5_1,   block_format::q8_0, block_format::q2_k,
    block_format::q3_k,   block_format::q4_k,   block_format::q5_k, block_format::q6_k,
    block_format::iq4_nl, block_format::iq4_xs, block_format::bf16, block_format::mxfp4};

/// Weights and bytes of one block.
struct block_shape {
    std::size_t weights = 1;
    std::size_t bytes = 0;
};

/// Weights and bytes of one block of a format; a block of a float format is one number.
[[nodiscard]] constexpr block_shape shape_of(block_format format) noexcept {
    switch (format) {
    case block_format::f32:
        return {1, 4};
    case block_format::f16:
    case block_format::bf16:
        return {1, 2};
    case block_format::q4_0:
    case block_format::iq4_nl:
        return {32, 2 + 16};
    case block_format::q4_1:
        return {32, 2 + 2 + 16};
    case block_format::q5_0:
        return {32, 2 + 4 + 16};
    case block_format::q5_1:
        return {32, 2 + 2 + 4 + 16};
    case block_format::q8_0:
        return {32, 2 + 32};
    case block_format::mxfp4:
        return {32, 1 + 16};
    case block_format::q2_k:
        return {256, 16 + 64 + 2 + 2};
    case block_format::q3_k:
        return {256, 32 + 64 + 12 + 2};
    case block_format::q4_k:
        return {256, 2 + 2 + 12 + 128};
    case block_format::q5_k:
        return {256, 2 + 2 + 12 + 32 + 128};
    case block_format::q6_k:
        return {256, 128 + 64 + 16 + 2};
    case block_format::iq4_xs:
        return {256, 2 + 2 + 4 + 128};
    }
    return {};
}

/// Name in GGUF, such as "Q4_K".
[[nodiscard]] constexpr std::string_view name_of(block_format format) noexcept {
    switch (format) {
    case block_format::f32:
        return "F32";
    case block_format::f16:
        return "F16";
    case block_format::bf16:
        return "BF16";
    case block_format::q4_0:
        return "Q4_0";
    case block_format::q4_1:
        return "Q4_1";
    case block_format::q5_0:
        return "Q5_0";
    case block_format::q5_1:
        return "Q5_1";
    case block_format::q8_0:
        return "Q8_0";
    case block_format::q2_k:
        return "Q2_K";
    case block_format::q3_k:
        return "Q3_K";
    case block_format::q4_k:
        return "Q4_K";
    case block_format::q5_k:
        return "Q5_K";
    case block_format::q6_k:
        return "Q6_K";
    case block_format::iq4_nl:
        return "IQ4_NL";
    case block_format::iq4_xs:
        return "IQ4_XS";
    case block_format::mxfp4:
        return "MXFP4";
    }
    return "?";
}

/// The format with this type number in GGUF, or nothing if it is none of block_formats.
[[nodiscard]] constexpr std::optional<block_format> block_format_of(std::uint32_t number) noexcept {
    for (const block_format format : block_formats)
        if (static_cast<std::uint32_t>(format) == number)
            return format;
    return std::nullopt;
}

/// Returns whether a format has integer codes and scales, rather than one float a weight.
[[nodiscard]] constexpr bool is_quantized(block_format format) noexcept {
    return shape_of(format).weights > 1;
}

}} // namespace kvcache
