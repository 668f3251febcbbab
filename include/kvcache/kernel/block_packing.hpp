// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/core/number_format.hpp>
#include <kvcache/kernel/block_format.hpp>
#include <kvcache/kernel/block_layout.hpp>
#include <kvcache/kernel/quant_block.hpp>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI {

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
        const auto bits = std::bit_cast<std::uint32_t>(block.scale); // undoes half_of_e8m0()
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
