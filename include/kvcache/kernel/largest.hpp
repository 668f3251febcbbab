// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/kernel/simd.hpp>

#include <cstddef>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

#if defined(__AVX__)

/// Reduces each of four vectors to one lane, with the same tree as a single reduction.
template <class Op>
[[nodiscard]] KVCACHE_INLINE inline __m128 fold_each(const f32x16 (&x)[4], Op op) noexcept {
#if defined(__AVX512F__)
    // Lane i with i + 8 of two vectors at once, then i + 4 of four, each in its own quarter; then i + 2 and i + 1
    // there.
    const auto halves = [&](const f32x16& a, const f32x16& b) KVCACHE_INLINE {
        const __m512 u = a.part[0].data, v = b.part[0].data;
        return op(_mm512_shuffle_f32x4(u, v, 0b01'00'01'00), _mm512_shuffle_f32x4(u, v, 0b11'10'11'10));
    };
    const __m512 u = halves(x[0], x[1]), v = halves(x[2], x[3]);
    const __m512 four = op(_mm512_shuffle_f32x4(u, v, 0b10'00'10'00), _mm512_shuffle_f32x4(u, v, 0b11'01'11'01));
    const __m512 two = op(four, _mm512_permute_ps(four, 0b11'10'11'10));
    const __m512 one = op(two, _mm512_permute_ps(two, 0b01'01'01'01));
    const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(first, one));
#else
    __m128 four[4];
    for (std::size_t i = 0; i < 4; ++i) {
        const __m256 eight = op(x[i].part[0].data, x[i].part[1].data);
        four[i] = op(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    }
    const __m128 a = op(_mm_unpacklo_ps(four[0], four[1]), _mm_unpackhi_ps(four[0], four[1]));
    const __m128 b = op(_mm_unpacklo_ps(four[2], four[3]), _mm_unpackhi_ps(four[2], four[3]));
    return op(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));
#endif
}

struct larger {
#if defined(__AVX512F__)
    KVCACHE_INLINE __m512 operator()(__m512 a, __m512 b) const noexcept {
        return _mm512_max_ps(a, b);
    }
#endif
    KVCACHE_INLINE __m256 operator()(__m256 a, __m256 b) const noexcept {
        return _mm256_max_ps(a, b);
    }
    KVCACHE_INLINE __m128 operator()(__m128 a, __m128 b) const noexcept {
        return _mm_max_ps(a, b);
    }
};

struct added {
#if defined(__AVX512F__)
    KVCACHE_INLINE __m512 operator()(__m512 a, __m512 b) const noexcept {
        return _mm512_add_ps(a, b);
    }
#endif
    KVCACHE_INLINE __m256 operator()(__m256 a, __m256 b) const noexcept {
        return _mm256_add_ps(a, b);
    }
    KVCACHE_INLINE __m128 operator()(__m128 a, __m128 b) const noexcept {
        return _mm_add_ps(a, b);
    }
};

#endif

} // namespace detail

/// Largest lane of each vector, with the same tree as a single reduction.
template <std::size_t N>
KVCACHE_INLINE inline void largest(const f32x16 (&x)[N], float (&to)[N]) noexcept {
#if defined(__AVX__)
    constexpr bool side_by_side = N == 4;
    if constexpr (side_by_side)
        _mm_storeu_ps(to, detail::fold_each(x, detail::larger{}));
#else
    constexpr bool side_by_side = false;
#endif
    if constexpr (!side_by_side)
        for (std::size_t i = 0; i < N; ++i)
            to[i] = largest(x[i]);
}

/// Sum of the lanes of each vector, with the same tree as a single reduction.
template <std::size_t N>
KVCACHE_INLINE inline void sum(const f32x16 (&x)[N], float (&to)[N]) noexcept {
#if defined(__AVX__)
    constexpr bool side_by_side = N == 4;
    if constexpr (side_by_side)
        _mm_storeu_ps(to, detail::fold_each(x, detail::added{}));
#else
    constexpr bool side_by_side = false;
#endif
    if constexpr (!side_by_side)
        for (std::size_t i = 0; i < N; ++i)
            to[i] = sum(x[i]);
}

/// Running maximum: tops[i] is the largest of `before` and the lanes of x[0], ..., x[i], and falls[i] the previous
/// maximum minus it. Branch-free, with the result of `most = largest(x[i]); if (most > before) before = most`. Returns:
/// the last maximum.
KVCACHE_INLINE inline float rising(const f32x16 (&x)[4], float before, float* tops, float* falls) noexcept {
#if defined(__AVX__)
    const __m128 start = _mm_set1_ps(before);
    __m128 top = _mm_max_ps(detail::fold_each(x, detail::larger{}),
                            start); // with equal or NaN operands the second one
    top = _mm_max_ps(top, _mm_permute_ps(top, 0b10'01'00'00));
    top = _mm_max_ps(top, _mm_permute_ps(top, 0b01'00'01'00));
    _mm_storeu_ps(tops, top);
    _mm_storeu_ps(falls, _mm_sub_ps(_mm_blend_ps(_mm_permute_ps(top, 0b10'01'00'00), start, 1), top));
    return tops[3];
#else
    for (std::size_t i = 0; i < 4; ++i) {
        const float most = largest(x[i]);
        tops[i] = most > before ? most : before;
        falls[i] = before - tops[i];
        before = tops[i];
    }
    return before;
#endif
}

}} // namespace kvcache
