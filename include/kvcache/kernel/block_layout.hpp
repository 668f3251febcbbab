// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/kernel/block_format.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Values of the 4-bit codes of IQ4_NL and IQ4_XS.
inline constexpr std::array<std::int8_t, 16> iq4_values = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                           1,    13,   25,  38,  53,  69,  89,  113};

/// Twice the values of the 4-bit floats of MXFP4 (E2M1): a sign, 2 exponent bits, 1 fraction bit.
inline constexpr std::array<std::int8_t, 16> mxfp4_values = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/// What a block of a quantised format consists of, and its place in a packed panel of 16 outputs (block_matrix).
///
/// A packed block of 16 outputs is: the scales (16, binary16; 16 bytes of exponents for MXFP4); the offsets, if any
/// (16, binary16); for nested scales and each group, the scales (16, int8) and the offsets, if any (16, uint8); then
/// for every 32 inputs the low bits of the codes and the high bits. Codes are in quads, four inputs of each of 16
/// outputs: a byte has the low bits of the same place in 8 / low_bits adjacent quads, lowest bits first, and likewise
/// the high bits. So a shift and a mask give the operand of a dot-product instruction, (16, 4).
struct block_layout {
    /// Values of codes: the code less `zero`, or a table.
    enum class values : std::uint8_t { linear, iq4, mxfp4 };

    std::uint8_t low_bits = 4;
    std::uint8_t high_bits = 0;
    std::uint8_t zero = 0;   ///< The code of the level 0; for a table, what makes every level positive.
    std::uint8_t group = 32; ///< Weights that share a scale.
    bool nested = false;     ///< Groups have integer scales, times the scale of a block of 256.
    bool offset = false;     ///< Weights have an offset.
    values table = values::linear;

    /// Level of a code.
    [[nodiscard]] constexpr int level(std::uint8_t code) const noexcept {
        return table == values::linear ? code - zero : table == values::iq4 ? iq4_values[code] : mxfp4_values[code];
    }

    /// Inputs of a block.
    [[nodiscard]] constexpr std::size_t weights() const noexcept { return nested ? 256 : 32; }
    /// Groups of a block.
    [[nodiscard]] constexpr std::size_t groups() const noexcept { return weights() / group; }
    /// Bytes of the nested scales and offsets of one group of inputs, for 16 outputs.
    [[nodiscard]] constexpr std::size_t group_bytes() const noexcept { return nested ? offset ? 32 : 16 : 0; }
    /// Bytes of the scales and offsets of 16 outputs that are not nested.
    [[nodiscard]] constexpr std::size_t scale_bytes() const noexcept {
        return table == values::mxfp4 ? 16 : offset ? 64 : 32;
    }
    /// Bytes before the codes of a packed block.
    [[nodiscard]] constexpr std::size_t head_bytes() const noexcept { return scale_bytes() + groups() * group_bytes(); }
    /// Bytes of the packed codes of 32 inputs and 16 outputs.
    [[nodiscard]] constexpr std::size_t step_bytes() const noexcept { return (low_bits + high_bits) * std::size_t{64}; }
    /// Bytes of a packed block of 16 outputs.
    [[nodiscard]] constexpr std::size_t packed_bytes() const noexcept {
        return head_bytes() + weights() / 32 * step_bytes();
    }
};

/// Layout of a quantised format.
[[nodiscard]] constexpr block_layout layout_of(block_format format) noexcept {
    using values = block_layout::values;
    switch (format) {
    case block_format::f32:
    case block_format::f16:
    case block_format::bf16:
        break;
    case block_format::q4_0:
        return {.zero = 8};
    case block_format::q4_1:
        return {.offset = true};
    case block_format::q5_0:
        return {.high_bits = 1, .zero = 16};
    case block_format::q5_1:
        return {.high_bits = 1, .offset = true};
    case block_format::q8_0:
        return {.low_bits = 8, .zero = 128};
    case block_format::q2_k:
        return {.low_bits = 2, .group = 16, .nested = true, .offset = true};
    case block_format::q3_k:
        return {.low_bits = 2, .high_bits = 1, .zero = 4, .group = 16, .nested = true};
    case block_format::q4_k:
        return {.nested = true, .offset = true};
    case block_format::q5_k:
        return {.high_bits = 1, .nested = true, .offset = true};
    case block_format::q6_k:
        return {.high_bits = 2, .zero = 32, .group = 16, .nested = true};
    case block_format::iq4_nl:
        return {.zero = 127, .table = values::iq4};
    case block_format::iq4_xs:
        return {.zero = 127, .nested = true, .table = values::iq4};
    case block_format::mxfp4:
        return {.zero = 12, .table = values::mxfp4};
    }
    return {};
}

}} // namespace kvcache
