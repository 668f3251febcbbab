// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/little_endian.hpp>
#include <kvcache/core/number_format.hpp>
#include <kvcache/kernel/block_format.hpp>
#include <kvcache/kernel/block_layout.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
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
    return std::bit_cast<float>(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
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

}} // namespace kvcache
