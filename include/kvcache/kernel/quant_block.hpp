// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/little_endian.hpp>
#include <kvcache/core/number_format.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/kernel/block_format.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI {

/// One block of a quantised format, taken apart. A weight is scale * scales[group] * level + offset * offsets[group],
/// where the level is the value of its code. Every product is exact in float32 (11 + 7 + 5 bits at most), so a weight
/// is rounded once, and neither the order of the products nor contraction changes it.
struct quant_block {
    block_layout layout = {};
    float scale = 0.0f;
    float offset = -0.0f;                      ///< -0 where a format has no offset: adding it changes nothing.
    std::array<std::int8_t, 16> scales = {};   ///< (weights / group) 1 where a format has only one scale.
    std::array<std::uint8_t, 16> offsets = {}; ///< (weights / group) 1 where it has only one offset.
    std::array<std::uint8_t, 256> codes = {};  ///< (weights)

    /// Weight `i` of the block.
    [[nodiscard]] float weight(std::size_t i) const noexcept {
        const std::size_t g = i / layout.group;
        const float by = scale * static_cast<float>(scales[g]), shift = offset * static_cast<float>(offsets[g]);
        return by * static_cast<float>(layout.level(codes[i])) + shift;
    }
};

namespace detail {

using block_bytes = std::span<const std::byte>;

[[nodiscard]] constexpr std::uint32_t byte_at(block_bytes from, std::size_t at) noexcept {
    return std::to_integer<std::uint32_t>(from[at]);
}
[[nodiscard]] constexpr float half_at(block_bytes from, std::size_t at) noexcept {
    return widen(half{load_little<std::uint16_t>(from, at)});
}

/// 2^(exponent - 128): half of the power of two that E8M0 stands for, since the values of MXFP4 are doubled. The two
/// smallest are subnormal.
[[nodiscard]] constexpr float half_of_e8m0(std::uint32_t exponent) noexcept {
    return bit_cast<float>(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
}

/// Bits [0, 4) of byte i of each `run` bytes are code i of 2 * run codes, bits [4, 8) are code run + i.
inline void read_nibbles(block_bytes from, std::size_t run, quant_block& to) noexcept {
    for (std::size_t first = 0; first < from.size(); first += run)
        for (std::size_t i = 0; i < run; ++i) {
            const std::uint32_t two = byte_at(from, first + i);
            to.codes[2 * first + i] = static_cast<std::uint8_t>(two & 15u);
            to.codes[2 * first + run + i] = static_cast<std::uint8_t>(two >> 4);
        }
}

/// The eight 6-bit scales and offsets of Q4_K and Q5_K. (12 bytes)
inline void read_scales_and_offsets(block_bytes from, quant_block& to) noexcept {
    for (std::size_t i = 0; i < 4; ++i) {
        const std::uint32_t low = byte_at(from, i), middle = byte_at(from, 4 + i), high = byte_at(from, 8 + i);
        to.scales[i] = static_cast<std::int8_t>(low & 63u);
        to.offsets[i] = static_cast<std::uint8_t>(middle & 63u);
        to.scales[4 + i] = static_cast<std::int8_t>((high & 15u) | (low >> 6) << 4);
        to.offsets[4 + i] = static_cast<std::uint8_t>(high >> 4 | (middle >> 6) << 4);
    }
}

inline void read_q2_k(block_bytes from, quant_block& to) noexcept {
    to.scale = half_at(from, 80);
    to.offset = -half_at(from, 82);
    for (std::size_t g = 0; g < 16; ++g) {
        to.scales[g] = static_cast<std::int8_t>(byte_at(from, g) & 15u);
        to.offsets[g] = static_cast<std::uint8_t>(byte_at(from, g) >> 4);
    }
    for (std::size_t i = 0; i < 256; ++i)
        to.codes[i] = static_cast<std::uint8_t>(byte_at(from, 16 + i / 128 * 32 + i % 32) >> (i / 32 % 4 * 2) & 3u);
}

inline void read_q3_k(block_bytes from, quant_block& to) noexcept {
    to.scale = half_at(from, 108);
    for (std::size_t g = 0; g < 16; ++g) {
        const std::uint32_t low = byte_at(from, 96 + g % 8) >> (g / 8 * 4) & 15u;
        const std::uint32_t high = byte_at(from, 104 + g % 4) >> (g / 4 * 2) & 3u;
        to.scales[g] = static_cast<std::int8_t>(static_cast<int>(low | high << 4) - 32);
    }
    for (std::size_t i = 0; i < 256; ++i) {
        const std::uint32_t low = byte_at(from, 32 + i / 128 * 32 + i % 32) >> (i / 32 % 4 * 2) & 3u;
        const std::uint32_t high = byte_at(from, i % 32) >> (i / 32) & 1u;
        to.codes[i] = static_cast<std::uint8_t>(low | high << 2);
    }
}

inline void read_q6_k(block_bytes from, quant_block& to) noexcept {
    to.scale = half_at(from, 208);
    for (std::size_t g = 0; g < 16; ++g)
        to.scales[g] = static_cast<std::int8_t>(byte_at(from, 192 + g));
    for (std::size_t i = 0; i < 256; ++i) {
        const std::uint32_t low = byte_at(from, i / 128 * 64 + i % 64) >> (i / 64 % 2 * 4) & 15u;
        const std::uint32_t high = byte_at(from, 128 + i / 128 * 32 + i % 32) >> (i / 32 % 4 * 2) & 3u;
        to.codes[i] = static_cast<std::uint8_t>(low | high << 4);
    }
}

inline void read_iq4_xs(block_bytes from, quant_block& to) noexcept {
    to.scale = half_at(from, 0);
    for (std::size_t g = 0; g < 8; ++g) {
        const std::uint32_t low = byte_at(from, 4 + g / 2) >> (g % 2 * 4) & 15u;
        const std::uint32_t high = byte_at(from, 2 + g / 4) >> (g % 4 * 2) & 3u;
        to.scales[g] = static_cast<std::int8_t>(static_cast<int>(low | high << 4) - 32);
    }
    read_nibbles(from.subspan(8), 16, to);
}

/// Formats with one scale, and perhaps one offset, for 32 weights: codes of 5 bits have their highest bits in four
/// bytes before the others.
inline void read_of_32(block_bytes from, quant_block& to) noexcept {
    to.scale = half_at(from, 0);
    std::size_t at = 2;
    if (to.layout.offset) {
        to.offset = half_at(from, at);
        to.offsets[0] = 1;
        at += 2;
    }
    if (to.layout.high_bits == 0)
        return read_nibbles(from.subspan(at), 16, to);
    const auto high = load_little<std::uint32_t>(from, at);
    read_nibbles(from.subspan(at + 4), 16, to);
    for (std::size_t i = 0; i < 32; ++i)
        to.codes[i] = static_cast<std::uint8_t>(to.codes[i] | (high >> i & 1u) << 4);
}

inline void read_q4_k_or_q5_k(block_bytes from, quant_block& to) noexcept {
    to.scale = half_at(from, 0);
    to.offset = -half_at(from, 2);
    read_scales_and_offsets(from.subspan(4, 12), to);
    if (to.layout.high_bits == 0)
        return read_nibbles(from.subspan(16), 32, to);
    read_nibbles(from.subspan(48), 32, to);
    for (std::size_t i = 0; i < 256; ++i)
        to.codes[i] = static_cast<std::uint8_t>(to.codes[i] | (byte_at(from, 16 + i % 32) >> (i / 32) & 1u) << 4);
}

} // namespace detail

/// Takes a block apart. Requires: the format is quantised, and `from` is one block. Cost: scalar code, for loading.
[[nodiscard]] inline quant_block read_block(block_format format, std::span<const std::byte> from) noexcept {
    quant_block to;
    to.layout = layout_of(format);
    to.scales[0] = 1;
    switch (format) {
    case block_format::f32:
    case block_format::f16:
    case block_format::bf16:
        break;
    case block_format::q4_0:
    case block_format::q4_1:
    case block_format::q5_0:
    case block_format::q5_1:
    case block_format::iq4_nl:
        detail::read_of_32(from, to);
        break;
    case block_format::q8_0:
        to.scale = detail::half_at(from, 0);
        for (std::size_t i = 0; i < 32; ++i)
            to.codes[i] = static_cast<std::uint8_t>(detail::byte_at(from, 2 + i) ^ 128u);
        break;
    case block_format::mxfp4:
        to.scale = detail::half_of_e8m0(detail::byte_at(from, 0));
        detail::read_nibbles(from.subspan(1), 16, to);
        break;
    case block_format::q2_k:
        detail::read_q2_k(from, to);
        break;
    case block_format::q3_k:
        detail::read_q3_k(from, to);
        break;
    case block_format::q4_k:
    case block_format::q5_k:
        detail::read_q4_k_or_q5_k(from, to);
        break;
    case block_format::q6_k:
        detail::read_q6_k(from, to);
        break;
    case block_format::iq4_xs:
        detail::read_iq4_xs(from, to);
        break;
    }
    return to;
}

/// Widens stored blocks to float32: exactly the numbers of the reference of GGUF (the Python package `gguf`), bit for
/// bit on every target; a NaN stays NaN, with unspecified bits. blocks: (out.size() / weights, bytes) of
/// shape_of(format), in file order at any alignment. Requires: `out` is whole blocks, and `blocks` is as many. Cost:
/// scalar code, for loading and single rows; products read packed blocks.
inline void dequantize(block_format format, std::span<const std::byte> blocks, std::span<float> out) {
    const block_shape shape = shape_of(format);
    expects(out.size() % shape.weights == 0 && blocks.size() == out.size() / shape.weights * shape.bytes,
            "blocks and their weights are as many");
    for (std::size_t i = 0; i < out.size(); i += shape.weights) {
        const auto block = blocks.subspan(i / shape.weights * shape.bytes, shape.bytes);
        switch (format) {
        case block_format::f32:
            out[i] = bit_cast<float>(load_little<std::uint32_t>(block, 0));
            break;
        case block_format::f16:
            out[i] = widen(half{load_little<std::uint16_t>(block, 0)});
            break;
        case block_format::bf16:
            out[i] = widen(bfloat16{load_little<std::uint16_t>(block, 0)});
            break;
        default: {
            const quant_block parts = read_block(format, block);
            for (std::size_t w = 0; w < shape.weights; ++w)
                out[i + w] = parts.weight(w);
        }
        }
    }
}

/// Rounds a row to blocks of Q8_0: weight = scale * level, |level| <= 127, rounded to nearest, at most half a scale
/// away. The scale is the largest |weight| of 32 by 127, in binary16. A block with an infinite weight, a NaN, or a
/// weight too large for such a scale (8.3 million) has the scale NaN. row: (inputs), to: (inputs / 32, 34). Requires:
/// `inputs` is a multiple of 32.
inline void quantize_q8_0(std::span<const float> row, std::span<std::byte> to) noexcept {
    for (; !row.empty(); row = row.subspan(32), to = to.subspan(34)) {
        float most = 0.0f, poison = 0.0f; // NaN after infinities and NaN
        for (const float weight : row.first<32>()) {
            most = std::max(most, std::fabs(weight));
            poison += weight * 0.0f;
        }
        half scale = to_half(most / 127.0f);
        if (most > 0.0f && most >= 127.5f * widen(scale)) // rounded down, among the few binary16 numbers near zero
            ++scale.bits;
        if (!std::isfinite(widen(scale)) || poison != 0.0f)
            scale.bits = 0x7e00;
        store_little(to, 0, scale.bits);
        const float by = widen(scale);
        for (std::size_t i = 0; i < 32; ++i) {
            const float level = by > 0.0f ? std::nearbyint(row[i] / by) : 0.0f;
            to[2 + i] = static_cast<std::byte>(static_cast<std::int8_t>(level));
        }
    }
}

/// Bytes of a packed panel of 16 outputs. Requires: `inputs` is whole blocks.
[[nodiscard]] constexpr std::size_t panel_bytes(block_format format, std::size_t inputs) noexcept {
    const block_layout layout = layout_of(format);
    return inputs / layout.weights() * layout.packed_bytes();
}

namespace detail {

/// The binary16 number of the same value. A NaN stays NaN. Requires: the number is a binary16 number.
[[nodiscard]] inline std::uint16_t half_bits(float number) noexcept {
    if (std::isinf(number))
        return std::signbit(number) ? 0xFC00 : 0x7C00;
    return to_half(number).bits;
}

/// Every byte of a word.
[[nodiscard]] constexpr std::uint32_t in_each_byte(std::uint32_t bits) noexcept {
    return bits * 0x01010101u;
}

/// Writes the scales of one output to a packed block.
inline void pack_scales(const quant_block& block, std::size_t lane, std::byte* to) noexcept {
    const block_layout& layout = block.layout;
    if (layout.table == block_layout::values::mxfp4) {
        const auto bits = bit_cast<std::uint32_t>(block.scale); // undoes half_of_e8m0()
        to[lane] = static_cast<std::byte>(bits < 0x00800000u ? bits >> 22 : (bits >> 23) + 1);
    } else {
        const std::uint16_t scale = half_bits(block.scale), offset = half_bits(block.offset);
        std::memcpy(to + 2 * lane, &scale, 2);
        if (layout.offset)
            std::memcpy(to + 32 + 2 * lane, &offset, 2);
    }
    to += layout.scale_bytes();
    if (layout.nested)
        for (std::size_t g = 0; g < layout.groups(); ++g, to += layout.group_bytes()) {
            to[lane] = static_cast<std::byte>(block.scales[g]);
            if (layout.offset)
                to[16 + lane] = static_cast<std::byte>(block.offsets[g]);
        }
}

/// Writes the codes of one output to a packed block, whose code bytes are zero in that lane.
inline void pack_codes(const quant_block& block, std::size_t lane, std::byte* to) noexcept {
    const block_layout& layout = block.layout;
    const std::size_t low = layout.low_bits, high = layout.high_bits;
    to += layout.head_bytes() + 4 * lane;
    for (std::size_t step = 0; step < layout.weights() / 32; ++step, to += layout.step_bytes()) {
        std::array<std::uint32_t, 10> lines = {};
        for (std::size_t quad = 0; quad < 8; ++quad) {
            std::uint32_t four;
            std::memcpy(&four, &block.codes[step * 32 + quad * 4], 4);
            lines[quad * low / 8] |= (four & in_each_byte((1u << low) - 1)) << (quad * low % 8);
            if (high > 0)
                lines[low + quad * high / 8] |= (four >> low & in_each_byte((1u << high) - 1)) << (quad * high % 8);
        }
        for (std::size_t line = 0; line < low + high; ++line)
            std::memcpy(to + 64 * line, &lines[line], 4);
    }
}

} // namespace detail

/// Packs 16 rows of blocks into a panel, in the layout of block_layout. Each row is the blocks of one output in file
/// order, at any alignment; null is a row of zeros. to: panel_bytes(format, inputs). Cost: reads and writes every byte
/// once, with scalar code.
inline void pack_panel(block_format format, std::span<const std::byte* const, 16> rows, std::size_t inputs,
                       std::byte* to) noexcept {
    const block_shape shape = shape_of(format);
    for (std::size_t block = 0; block < inputs / shape.weights; ++block, to += layout_of(format).packed_bytes())
        for (std::size_t lane = 0; lane < 16; ++lane) {
            quant_block taken{.layout = layout_of(format)};
            if (rows[lane] != nullptr)
                taken = read_block(format, {rows[lane] + block * shape.bytes, shape.bytes});
            detail::pack_scales(taken, lane, to);
            detail::pack_codes(taken, lane, to);
        }
}

/// Block of output `lane` in a packed block of 16 outputs.
[[nodiscard]] inline quant_block unpack_block(const block_layout& layout, const std::byte* from,
                                              std::size_t lane) noexcept {
    quant_block to{.layout = layout};
    const auto half_from = [&](const std::byte* at) {
        half number;
        std::memcpy(&number.bits, at, 2);
        return widen(number);
    };
    to.scales[0] = 1;
    if (layout.table == block_layout::values::mxfp4)
        to.scale = detail::half_of_e8m0(std::to_integer<std::uint32_t>(from[lane]));
    else
        to.scale = half_from(from + 2 * lane);
    if (layout.offset) {
        to.offset = half_from(from + 32 + 2 * lane);
        to.offsets[0] = 1;
    }
    const std::byte* at = from + layout.scale_bytes() + lane;
    if (layout.nested)
        for (std::size_t g = 0; g < layout.groups(); ++g, at += layout.group_bytes()) {
            to.scales[g] = static_cast<std::int8_t>(std::to_integer<std::uint8_t>(at[0]));
            if (layout.offset)
                to.offsets[g] = std::to_integer<std::uint8_t>(at[16]);
        }
    const std::size_t low = layout.low_bits, high = layout.high_bits;
    for (std::size_t i = 0; i < layout.weights(); ++i) {
        const std::byte* codes = from + layout.head_bytes() + i / 32 * layout.step_bytes() + 4 * lane + i % 4;
        const std::size_t quad = i % 32 / 4;
        std::uint32_t code = std::to_integer<std::uint32_t>(codes[quad * low / 8 * 64]) >> (quad * low % 8);
        code &= (1u << low) - 1;
        if (high > 0) {
            const auto line = std::to_integer<std::uint32_t>(codes[(low + quad * high / 8) * 64]);
            code |= (line >> (quad * high % 8) & ((1u << high) - 1)) << low;
        }
        to.codes[i] = static_cast<std::uint8_t>(code);
    }
    return to;
}

}} // namespace kvcache
