// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/inline.hpp>
#include <kvcache/kernel/block_codes.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

/// Dot products of quads of weights, 16 outputs at once, with four int8 activations. Sums of int32 are exact, so all
/// variants give the same results.
namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

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

}}} // namespace kvcache::detail
