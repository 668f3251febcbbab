// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/kernel/native.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Block size of the transform for a row of `size`: the largest power of two that divides it.
[[nodiscard]] constexpr std::size_t hadamard_block(std::size_t size) noexcept {
    return size & (~size + 1);
}

namespace detail {

#if defined(__AVX2__)
// Sums and differences of lanes 1, 2 and 4 apart.
[[nodiscard]] inline __m256 hadamard_of_eight(__m256 x) noexcept {
    const auto step = [](__m256 own, __m256 other, int minus) {
        const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        const __m256i lower = _mm256_and_si256(lanes, _mm256_set1_epi32(minus));
        const __m256i sign = _mm256_slli_epi32(_mm256_cmpgt_epi32(lower, _mm256_setzero_si256()), 31);
        return _mm256_add_ps(other, _mm256_xor_ps(own, _mm256_castsi256_ps(sign)));
    };
    x = step(x, _mm256_permute_ps(x, 0b10110001), 1);
    x = step(x, _mm256_permute_ps(x, 0b01001110), 2);
    return step(x, _mm256_permute2f128_ps(x, x, 1), 4);
}
#endif

#if defined(__AVX512F__)
// All stages for 16 * Parts values, times `scale`, in registers.
template <std::size_t Parts>
inline void hadamard_of_parts(float* x, float scale) noexcept {
    __m512 part[Parts];
    KVCACHE_UNROLL for (std::size_t i = 0; i < Parts; ++i) part[i] = _mm512_loadu_ps(x + i * 16);
    // One stage: each lane becomes its partner plus or minus itself.
    const auto stage = [&](__mmask16 minus, const auto& other) KVCACHE_INLINE {
        const __m512 sign = _mm512_mask_blend_ps(minus, _mm512_set1_ps(1.0f), _mm512_set1_ps(-1.0f));
        KVCACHE_UNROLL for (std::size_t i = 0; i < Parts; ++i) part[i] = _mm512_fmadd_ps(part[i], sign, other(part[i]));
    };
    stage(0xaaaa, [](__m512 v) KVCACHE_INLINE { return _mm512_permute_ps(v, 0b10110001); });
    stage(0xcccc, [](__m512 v) KVCACHE_INLINE { return _mm512_permute_ps(v, 0b01001110); });
    stage(0xf0f0, [](__m512 v) KVCACHE_INLINE { return _mm512_shuffle_f32x4(v, v, 0b10110001); });
    stage(0xff00, [](__m512 v) KVCACHE_INLINE { return _mm512_shuffle_f32x4(v, v, 0b01001110); });
    constexpr int stages = std::countr_zero(Parts);
    KVCACHE_UNROLL for (int s = 0; s < stages; ++s) {
        const std::size_t apart = std::size_t{1} << s;
        KVCACHE_UNROLL for (std::size_t pair = 0; pair < Parts / 2; ++pair) {
            const std::size_t i = pair / apart * 2 * apart + pair % apart;
            const __m512 a = part[i], b = part[i + apart];
            part[i] = _mm512_add_ps(a, b);
            part[i + apart] = _mm512_sub_ps(a, b);
        }
    }
    KVCACHE_UNROLL for (std::size_t i = 0; i < Parts; ++i)
        _mm512_storeu_ps(x + i * 16, _mm512_mul_ps(part[i], _mm512_set1_ps(scale)));
}
#endif

// One stage: sums and differences of values `apart` apart.
inline void hadamard_stage(float* x, std::size_t size, std::size_t apart) noexcept {
    for (std::size_t begin = 0; begin < size; begin += 2 * apart)
        for (std::size_t i = begin; i < begin + apart; ++i) {
            const float a = x[i], b = x[i + apart];
            x[i] = a + b;
            x[i + apart] = a - b;
        }
}

// Transforms one block, whose size is a power of two, times `scale`.
template <std::size_t Extent>
inline void hadamard_turn(std::span<float, Extent> block, float scale) noexcept {
    float* const x = block.data();
    const std::size_t size = block.size();
#if defined(__AVX512F__)
    if (size == 32)
        return hadamard_of_parts<2>(x, scale);
    if (size == 64)
        return hadamard_of_parts<4>(x, scale);
    if (size == 128)
        return hadamard_of_parts<8>(x, scale);
    if (size == 256)
        return hadamard_of_parts<16>(x, scale);
#endif
    std::size_t apart = 1;
#if defined(__AVX2__)
    if (size >= 8) {
        for (std::size_t i = 0; i < size; i += 8)
            _mm256_storeu_ps(x + i, hadamard_of_eight(_mm256_loadu_ps(x + i)));
        apart = 8;
        for (; 4 * apart <= size; apart *= 4) // two stages at a time
            for (std::size_t begin = 0; begin < size; begin += 4 * apart)
                for (std::size_t i = begin; i < begin + apart; i += 8) {
                    const __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + apart),
                                 c = _mm256_loadu_ps(x + i + 2 * apart), d = _mm256_loadu_ps(x + i + 3 * apart);
                    const __m256 ab = _mm256_add_ps(a, b), a_b = _mm256_sub_ps(a, b), cd = _mm256_add_ps(c, d),
                                 c_d = _mm256_sub_ps(c, d);
                    _mm256_storeu_ps(x + i, _mm256_add_ps(ab, cd));
                    _mm256_storeu_ps(x + i + apart, _mm256_add_ps(a_b, c_d));
                    _mm256_storeu_ps(x + i + 2 * apart, _mm256_sub_ps(ab, cd));
                    _mm256_storeu_ps(x + i + 3 * apart, _mm256_sub_ps(a_b, c_d));
                }
    }
#endif
    for (; apart < size; apart *= 2)
        hadamard_stage(x, size, apart);
    for (std::size_t i = 0; i < size; ++i)
        x[i] *= scale;
}

} // namespace detail

/// Transforms a row by the orthonormal Sylvester-Hadamard matrix, block by block if its size is not a power of two. An
/// outlier is spread over its block, norms and dot products are preserved, and applying it twice gives the row back up
/// to rounding. Cost: size * log2(size) additions. (Ashkboos et al. 2024, QuaRot)
template <std::size_t Extent = std::dynamic_extent>
inline void hadamard(std::span<float, Extent> row) noexcept {
    const std::size_t block = hadamard_block(row.size());
    const float scale = 1.0f / std::sqrt(static_cast<float>(block));
    for (std::size_t at = 0; at < row.size(); at += block)
        detail::hadamard_turn(row.subspan(at, block), scale);
}

}} // namespace kvcache
