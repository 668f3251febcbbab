// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/platform/machine.hpp>
#include <kvcache/kernel/block_format.hpp>
#include <kvcache/kernel/quant_block.hpp>
#include <kvcache/kernel/simd.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

// Vectors of codes, levels and scales from packed blocks of 16 outputs (block_layout).

/// A quad of codes of native_lanes outputs: the bytes of a lane belong to four adjacent inputs, lowest byte first.
using code_quad = std::uint32_t __attribute__((vector_size(4 * native_lanes)));
using code_bytes = std::uint8_t __attribute__((vector_size(4 * native_lanes)));
using code_numbers = std::int32_t __attribute__((vector_size(4 * native_lanes)));
using lane_floats = float __attribute__((vector_size(4 * native_lanes)));

/// Keeps a quad in its register: GCC would compute it again for each of its inputs.
KVCACHE_INLINE inline void keep(code_quad& quad) noexcept {
#if defined(__GNUC__) && defined(__SSE2__)
    asm("" : "+x"(quad));
#elif defined(__GNUC__) && defined(__aarch64__)
    asm("" : "+w"(quad));
#endif
}

/// `bits` in every byte of a quad.
[[nodiscard]] KVCACHE_INLINE inline code_quad in_all(std::uint32_t bits) noexcept {
    return code_quad{} + bits * 0x01010101u;
}

[[nodiscard]] KVCACHE_INLINE inline code_quad load_quad(const std::byte* from) noexcept {
    code_quad quad;
    std::memcpy(&quad, from, sizeof quad);
    return quad;
}

/// Codes of quad `quad` (of 8) of a step of 32 inputs whose bytes begin at `step`, of one part of the 16 outputs.
template <block_format Format>
[[nodiscard]] KVCACHE_INLINE inline code_quad codes_of(const std::byte* step, std::size_t quad,
                                                       std::size_t part) noexcept {
    constexpr block_layout layout = layout_of(Format);
    constexpr unsigned low = layout.low_bits, high = layout.high_bits;
    step += part * sizeof(code_quad);
    code_quad codes = load_quad(step + quad * low / 8 * 64);
    if constexpr (low < 8)
        codes = codes >> static_cast<unsigned>(quad * low % 8) & in_all((1u << low) - 1);
    if constexpr (high > 0) {
        code_quad upper = load_quad(step + (low + quad * high / 8) * 64);
        const auto at = static_cast<unsigned>(quad * high % 8);
        upper = at < low ? upper << (low - at) : upper >> (at - low);
        codes |= upper & in_all(((1u << high) - 1) << low);
    }
    return codes;
}

/// The values of a table at the codes of a quad. Requires: codes are below 16.
[[nodiscard]] KVCACHE_INLINE inline code_quad looked_up(const std::array<std::int8_t, 16>& table,
                                                        code_quad codes) noexcept {
#if defined(__AVX512BW__)
    const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table.data()));
    return reinterpret_cast<code_quad>(
        _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), reinterpret_cast<__m512i>(codes)));
#elif defined(__AVX2__) && !defined(__AVX512F__)
    const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table.data()));
    return reinterpret_cast<code_quad>(
        _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), reinterpret_cast<__m256i>(codes)));
#elif defined(__aarch64__)
    return reinterpret_cast<code_quad>(
        vqtbl1q_u8(vreinterpretq_u8_s8(vld1q_s8(table.data())), reinterpret_cast<uint8x16_t>(codes)));
#else
    std::uint8_t each[sizeof(code_quad)];
    std::memcpy(each, &codes, sizeof each);
    for (std::uint8_t& code : each)
        code = static_cast<std::uint8_t>(table[code & 15u]);
    std::memcpy(&codes, each, sizeof each);
    return codes;
#endif
}

/// Levels of codes, as int8.
template <block_format Format>
[[nodiscard]] KVCACHE_INLINE inline code_quad levels_of(code_quad codes) noexcept {
    constexpr block_layout layout = layout_of(Format);
    if constexpr (layout.table == block_layout::values::iq4)
        return looked_up(iq4_values, codes);
    else if constexpr (layout.table == block_layout::values::mxfp4)
        return looked_up(mxfp4_values, codes);
    else if constexpr (layout.zero == 128)
        return codes ^ in_all(128);
    else if constexpr (layout.zero > 0)
        return reinterpret_cast<code_quad>(reinterpret_cast<code_bytes>(codes) -
                                           reinterpret_cast<code_bytes>(in_all(layout.zero)));
    else
        return codes;
}

/// The values of a table, each plus `zero`, so that none is negative.
[[nodiscard]] constexpr std::array<std::int8_t, 16> raised(std::array<std::int8_t, 16> table, int zero) noexcept {
    for (std::int8_t& value : table)
        value = static_cast<std::int8_t>(value + zero);
    return table;
}

/// Levels of codes plus the layout's `zero`, as uint8.
template <block_format Format>
[[nodiscard]] KVCACHE_INLINE inline code_quad raised_levels_of(code_quad codes) noexcept {
    constexpr block_layout layout = layout_of(Format);
    if constexpr (layout.table == block_layout::values::linear) {
        return codes;
    } else {
        static constexpr std::array<std::int8_t, 16> table =
            raised(layout.table == block_layout::values::iq4 ? iq4_values : mxfp4_values, layout.zero);
        return looked_up(table, codes);
    }
}

/// Levels of input `i` (of 4) of a quad, as float32.
template <block_format Format>
[[nodiscard]] KVCACHE_INLINE inline native_floats level_of(code_quad levels, std::size_t i) noexcept {
    constexpr block_layout layout = layout_of(Format);
    const auto at = static_cast<unsigned>(8 * i);
    code_numbers numbers;
#if defined(__AVX512BW__)
    if (layout.zero == 0 && (i == 1 || i == 2)) { // one shuffle replaces a shift and a mask
        const auto byte = static_cast<int>(0x80808000u + i);
        const __m512i from = _mm512_set4_epi32(byte + 12, byte + 8, byte + 4, byte);
        numbers = reinterpret_cast<code_numbers>(_mm512_shuffle_epi8(reinterpret_cast<__m512i>(levels), from));
        return native_floats(__builtin_convertvector(numbers, lane_floats));
    }
#endif
    if constexpr (layout.zero == 0)
        numbers = reinterpret_cast<code_numbers>(i < 3 ? levels >> at & 255u : levels >> at);
    else
        numbers = reinterpret_cast<code_numbers>(levels << (24 - at)) >> 24;
    return native_floats(__builtin_convertvector(numbers, lane_floats));
}

/// Sixteen bytes as float32, signed or not.
template <class Byte>
[[nodiscard]] KVCACHE_INLINE inline f32x16 floats_of_bytes(const std::byte* from) noexcept {
    f32x16 v;
    KVCACHE_UNROLL for (std::size_t part = 0; part < native_parts; ++part) {
        Byte bytes[native_lanes];
        std::memcpy(bytes, from + part * native_lanes, sizeof bytes);
        code_numbers numbers;
        KVCACHE_UNROLL for (std::size_t lane = 0; lane < native_lanes; ++lane) numbers[lane] =
            std::int32_t{bytes[lane]};
        v.part[part] = native_floats(__builtin_convertvector(numbers, lane_floats));
    }
    return v;
}

#if defined(__AVX512F__)
template <>
[[nodiscard]] KVCACHE_INLINE inline f32x16 floats_of_bytes<std::int8_t>(const std::byte* from) noexcept {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {{native_floats(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)))}};
}
template <>
[[nodiscard]] KVCACHE_INLINE inline f32x16 floats_of_bytes<std::uint8_t>(const std::byte* from) noexcept {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {{native_floats(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)))}};
}
#endif

/// Scales and offsets of one group of inputs, for 16 outputs.
struct group_scales {
    f32x16 scale, offset;
};

/// Scales and offsets of a packed block.
template <block_format Format>
class block_scales {
public:
    KVCACHE_INLINE explicit block_scales(const std::byte* block) noexcept : nested_(block + layout.scale_bytes()) {
        if constexpr (layout.table == block_layout::values::mxfp4) {
            alignas(64) float each[16];
            KVCACHE_UNROLL for (std::size_t lane = 0; lane < 16; ++lane) each[lane] =
                half_of_e8m0(std::to_integer<std::uint32_t>(block[lane]));
            whole_.scale = f32x16::load(each);
        } else {
            whole_.scale = f32x16::load(reinterpret_cast<const half*>(block));
        }
        if constexpr (layout.offset)
            whole_.offset = f32x16::load(reinterpret_cast<const half*>(block + 32));
    }

    /// Scales and offsets of group `g`. `offset` is undefined for a format without offsets. The products are exact.
    [[nodiscard]] KVCACHE_INLINE group_scales group(std::size_t g) const noexcept {
        if constexpr (!layout.nested)
            return whole_;
        group_scales made;
        const std::byte* at = nested_ + g * layout.group_bytes();
        made.scale = whole_.scale * floats_of_bytes<std::int8_t>(at);
        if constexpr (layout.offset)
            made.offset = whole_.offset * floats_of_bytes<std::uint8_t>(at + 16);
        return made;
    }

private:
    static constexpr block_layout layout = layout_of(Format);

    const std::byte* nested_;
    group_scales whole_;
};

// Dot products of quads of weights, 16 outputs at once, with four int8 activations. Sums of int32 are exact, so all
// variants give the same results.

/// Running sums of native_lanes outputs.
using dot_sums = code_numbers;

#if defined(__AVX512VNNI__)

/// VNNI needs one unsigned operand: weights are their levels plus the `zero` of the layout, and `zero` times the sum of
/// the activations is subtracted.
template <block_format Format>
[[nodiscard]] KVCACHE_INLINE inline code_quad operands_of(code_quad codes) noexcept {
    return raised_levels_of<Format>(codes);
}
[[nodiscard]] constexpr std::int32_t zero_of_operands(block_layout layout) noexcept {
    return layout.zero;
}
/// sums += four activations times a quad.
KVCACHE_INLINE inline void add_dot(dot_sums& sums, const code_quad& weights, const std::int8_t* four) noexcept {
    std::int32_t bytes;
    std::memcpy(&bytes, four, sizeof bytes);
    sums = reinterpret_cast<dot_sums>(_mm512_dpbusd_epi32(
        reinterpret_cast<__m512i>(sums), reinterpret_cast<__m512i>(weights), _mm512_set1_epi32(bytes)));
}

#else

template <block_format Format>
[[nodiscard]] KVCACHE_INLINE inline code_quad operands_of(code_quad codes) noexcept {
    return levels_of<Format>(codes);
}
[[nodiscard]] constexpr std::int32_t zero_of_operands(block_layout) noexcept {
    return 0;
}
KVCACHE_INLINE inline void add_dot(dot_sums& sums, const code_quad& weights, const std::int8_t* four) noexcept {
#if defined(__AVX2__) && !defined(__AVX512F__)
    std::int32_t bytes;
    std::memcpy(&bytes, four, sizeof bytes);
    // VPMADDUBSW needs one unsigned operand: the signs of the weights move to the activations. Pairs of products are at
    // most 2 * 128 * 127, which fits int16.
    const auto w = reinterpret_cast<__m256i>(weights);
    const __m256i x = _mm256_sign_epi8(_mm256_set1_epi32(bytes), w);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), x);
    sums += reinterpret_cast<dot_sums>(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#else
    for (unsigned i = 0; i < 4; ++i)
        sums += (reinterpret_cast<code_numbers>(weights << (24 - 8 * i)) >> 24) * std::int32_t{four[i]};
#endif
}

#endif

/// The sums as float32, exactly.
[[nodiscard]] KVCACHE_INLINE inline native_floats floats_of(const dot_sums& sums) noexcept {
    return native_floats(__builtin_convertvector(sums, lane_floats));
}

/// Panels of a single row that are computed together: enough chains to hide the latency of a multiply-add, and no more.
inline constexpr std::size_t row_panels = native_lanes == 4 ? 1 : 4;

/// How far ahead a single row prefetches, in bytes. If the next panels begin within `most_panels_ahead`, the same place
/// in them is prefetched, since a short panel ends before `panel_ahead` is reached. Both were found by measuring.
inline constexpr std::size_t panel_ahead = 4096, most_panels_ahead = 128 << 10;

/// Calls body<Format>() with the quantised format.
template <class Body>
inline void with_format(block_format format, Body body) {
    using enum block_format;
    switch (format) {
    case f32:
    case f16:
    case bf16:
        return;
    case q4_0:
        return body.template operator()<q4_0>();
    case q4_1:
        return body.template operator()<q4_1>();
    case q5_0:
        return body.template operator()<q5_0>();
    case q5_1:
        return body.template operator()<q5_1>();
    case q8_0:
        return body.template operator()<q8_0>();
    case q2_k:
        return body.template operator()<q2_k>();
    case q3_k:
        return body.template operator()<q3_k>();
    case q4_k:
        return body.template operator()<q4_k>();
    case q5_k:
        return body.template operator()<q5_k>();
    case q6_k:
        return body.template operator()<q6_k>();
    case iq4_nl:
        return body.template operator()<iq4_nl>();
    case iq4_xs:
        return body.template operator()<iq4_xs>();
    case mxfp4:
        return body.template operator()<mxfp4>();
    }
}

}}} // namespace kvcache::detail
