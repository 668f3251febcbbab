// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/platform/standard.hpp>

#include <algorithm>
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

/// Values of the 4-bit codes of IQ4_NL and IQ4_XS.
inline constexpr std::array<std::int8_t, 16> iq4_values = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                           1,    13,   25,  38,  53,  69,  89,  113};

/// Twice the values of the 4-bit floats of MXFP4 (E2M1): a sign, 2 exponent bits, 1 fraction bit.
inline constexpr std::array<std::int8_t, 16> mxfp4_values = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/// Layout of a block of a quantised format, and of its packed form in a panel of 16 outputs (block_matrix).
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
    std::uint8_t zero = 0;   ///< The code of the level 0; for a table, a number that makes every level positive.
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

namespace detail {

/// The facts of a format. Gaps between the type numbers have the defaults.
struct block_format_facts {
    std::string_view name = "?";
    block_shape shape = {};
    block_layout layout = {};
};

/// Facts by type number.
inline constexpr auto block_format_table = [] {
    using enum block_format;
    using values = block_layout::values;
    std::array<block_format_facts, 40> of = {};
    const auto set = [&](block_format format, std::string_view name, block_shape shape, block_layout layout = {}) {
        of[static_cast<std::size_t>(format)] = {name, shape, layout};
    };
    set(f32, "F32", {1, 4});
    set(f16, "F16", {1, 2});
    set(bf16, "BF16", {1, 2});
    set(q4_0, "Q4_0", {32, 2 + 16}, {.zero = 8});
    set(q4_1, "Q4_1", {32, 2 + 2 + 16}, {.offset = true});
    set(q5_0, "Q5_0", {32, 2 + 4 + 16}, {.high_bits = 1, .zero = 16});
    set(q5_1, "Q5_1", {32, 2 + 2 + 4 + 16}, {.high_bits = 1, .offset = true});
    set(q8_0, "Q8_0", {32, 2 + 32}, {.low_bits = 8, .zero = 128});
    set(q2_k, "Q2_K", {256, 16 + 64 + 2 + 2}, {.low_bits = 2, .group = 16, .nested = true, .offset = true});
    set(q3_k, "Q3_K", {256, 32 + 64 + 12 + 2}, {.low_bits = 2, .high_bits = 1, .zero = 4, .group = 16, .nested = true});
    set(q4_k, "Q4_K", {256, 2 + 2 + 12 + 128}, {.nested = true, .offset = true});
    set(q5_k, "Q5_K", {256, 2 + 2 + 12 + 32 + 128}, {.high_bits = 1, .nested = true, .offset = true});
    set(q6_k, "Q6_K", {256, 128 + 64 + 16 + 2}, {.high_bits = 2, .zero = 32, .group = 16, .nested = true});
    set(iq4_nl, "IQ4_NL", {32, 2 + 16}, {.zero = 127, .table = values::iq4});
    set(iq4_xs, "IQ4_XS", {256, 2 + 2 + 4 + 128}, {.zero = 127, .nested = true, .table = values::iq4});
    set(mxfp4, "MXFP4", {32, 1 + 16}, {.zero = 12, .table = values::mxfp4});
    return of;
}();

} // namespace detail

/// Weights and bytes of one block of a format; a block of a float format is one number.
[[nodiscard]] constexpr block_shape shape_of(block_format format) noexcept {
    return detail::block_format_table[static_cast<std::size_t>(format)].shape;
}

/// Name in GGUF, such as "Q4_K".
[[nodiscard]] constexpr std::string_view name_of(block_format format) noexcept {
    return detail::block_format_table[static_cast<std::size_t>(format)].name;
}

/// Layout of a quantised format.
[[nodiscard]] constexpr block_layout layout_of(block_format format) noexcept {
    return detail::block_format_table[static_cast<std::size_t>(format)].layout;
}

static_assert(ranges::none_of(block_formats, [](block_format format) { return name_of(format) == "?"; }));

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
