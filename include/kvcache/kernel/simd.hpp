// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/number_format.hpp>
#include <kvcache/kernel/native.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Vector of 16 float32 lanes: one, two or four native vectors. Every kernel is written with this type, so that AVX2
/// and AVX-512 builds give the same bits. A product that feeds a sum is always written as fma(x, y, z), so that there
/// is nothing for a compiler to contract.
struct f32x16 {
    detail::native_floats part[detail::native_parts];

    static constexpr std::size_t lanes = 16;

    /// Loads 16 contiguous floats at any alignment.
    [[nodiscard]] static f32x16 load(const float* from) noexcept {
        f32x16 v;
        for (std::size_t i = 0; i < detail::native_parts; ++i)
            v.part[i] = detail::native_floats::load_unaligned(from + i * detail::native_lanes);
        return v;
    }

    /// Loads the first `count` < 16 floats; the other lanes are zero. `from` may be null if `count` is zero.
    [[nodiscard]] static f32x16 load_first(const float* from, std::size_t count) noexcept {
        alignas(64) float whole[lanes] = {};
        if (count > 0)
            std::memcpy(whole, from, count * sizeof(float));
        return load(whole);
    }

    /// Loads min(count, 16) floats; the other lanes are zero.
    [[nodiscard]] static f32x16 load_up_to(const float* from, std::size_t count) noexcept {
        return count >= lanes ? load(from) : load_first(from, count);
    }

    /// Loads 16 bfloat16 values, exactly.
    [[nodiscard]] static f32x16 load(const bfloat16* from) noexcept {
#if defined(__AVX512F__)
        const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
        return {{detail::native_floats(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16)))}};
#elif defined(__AVX2__)
        const auto wide = [](const bfloat16* at) {
            const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
            return detail::native_floats(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16)));
        };
        return {{wide(from), wide(from + 8)}};
#else
        alignas(64) std::uint32_t bits[lanes];
        for (std::size_t lane = 0; lane < lanes; ++lane)
            bits[lane] = std::uint32_t{from[lane].bits} << 16;
        alignas(64) float whole[lanes];
        std::memcpy(whole, bits, sizeof whole);
        return load(whole);
#endif
    }

    /// Loads 16 binary16 values, exactly; a NaN becomes quiet.
    [[nodiscard]] static f32x16 load(const half* from) noexcept {
#if defined(__AVX512F__)
        return {{detail::native_floats(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))))}};
#elif defined(__AVX2__) && defined(__F16C__)
        const auto wide = [](const half* at) {
            return detail::native_floats(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
        };
        return {{wide(from), wide(from + 8)}};
#elif defined(__aarch64__)
        f32x16 v;
        for (std::size_t i = 0; i < detail::native_parts; ++i)
            v.part[i] = detail::native_floats(
                vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const std::uint16_t*>(from) + i * 4))));
        return v;
#else
        alignas(64) float whole[lanes];
        for (std::size_t lane = 0; lane < lanes; ++lane)
            whole[lane] = widen(from[lane]);
        return load(whole);
#endif
    }

    [[nodiscard]] static f32x16 broadcast(float x) noexcept {
        f32x16 v;
        for (auto& p : v.part)
            p = detail::native_floats(x);
        return v;
    }

    [[nodiscard]] static f32x16 zero() noexcept {
        return broadcast(0.0f);
    }

    void store(float* to) const noexcept {
        for (std::size_t i = 0; i < detail::native_parts; ++i)
            part[i].store_unaligned(to + i * detail::native_lanes);
    }

    /// Stores the first `count` < 16 lanes.
    void store_first(float* to, std::size_t count) const noexcept {
        alignas(64) float whole[lanes];
        store(whole);
        if (count > 0)
            std::memcpy(to, whole, count * sizeof(float));
    }

    /// Stores the first min(count, 16) lanes.
    void store_up_to(float* to, std::size_t count) const noexcept {
        count >= lanes ? store(to) : store_first(to, count);
    }
};

namespace detail {

template <class Op>
[[nodiscard]] inline f32x16 lanewise(const f32x16& x, const f32x16& y, Op op) noexcept {
    f32x16 v;
    for (std::size_t i = 0; i < native_parts; ++i)
        v.part[i] = op(x.part[i], y.part[i]);
    return v;
}

} // namespace detail

/// Sum of each pair of lanes.
[[nodiscard]] inline f32x16 operator+(const f32x16& x, const f32x16& y) noexcept {
    return detail::lanewise(x, y, [](const auto& a, const auto& b) { return a + b; });
}
/// Difference of each pair of lanes.
[[nodiscard]] inline f32x16 operator-(const f32x16& x, const f32x16& y) noexcept {
    return detail::lanewise(x, y, [](const auto& a, const auto& b) { return a - b; });
}
/// Product of each pair of lanes.
[[nodiscard]] inline f32x16 operator*(const f32x16& x, const f32x16& y) noexcept {
    return detail::lanewise(x, y, [](const auto& a, const auto& b) { return a * b; });
}
/// Quotient of each pair of lanes, correctly rounded.
[[nodiscard]] inline f32x16 operator/(const f32x16& x, const f32x16& y) noexcept {
    return detail::lanewise(x, y, [](const auto& a, const auto& b) { return detail::divided(a, b); });
}
/// Negates each lane. Unlike 0 - x it is exact for zeros, and there is no sum for a compiler to contract.
[[nodiscard]] inline f32x16 operator-(const f32x16& x) noexcept {
    return detail::lanewise(x, f32x16::broadcast(-0.0f), [](const auto& a, const auto& b) { return a ^ b; });
}
/// Absolute value of each lane.
[[nodiscard]] inline f32x16 size_of(const f32x16& x) noexcept {
    f32x16 v;
    for (std::size_t i = 0; i < detail::native_parts; ++i)
        v.part[i] = xsimd::abs(x.part[i]);
    return v;
}
/// Larger of two lanes; `y` if one is NaN on x86.
[[nodiscard]] inline f32x16 max(const f32x16& x, const f32x16& y) noexcept {
    return detail::lanewise(x, y, [](const auto& a, const auto& b) { return xsimd::max(a, b); });
}
/// Smaller of two lanes; `y` if one is NaN on x86.
[[nodiscard]] inline f32x16 min(const f32x16& x, const f32x16& y) noexcept {
    return detail::lanewise(x, y, [](const auto& a, const auto& b) { return xsimd::min(a, b); });
}
/// x * y + z, rounded once.
[[nodiscard]] inline f32x16 fma(const f32x16& x, const f32x16& y, const f32x16& z) noexcept {
    f32x16 v;
    for (std::size_t i = 0; i < detail::native_parts; ++i)
        v.part[i] = detail::fused(x.part[i], y.part[i], z.part[i]);
    return v;
}

/// `x` in the lanes [first, last), `other` elsewhere. A select, not a multiplication, so NaN in a masked lane is
/// harmless.
[[nodiscard]] inline f32x16 within(const f32x16& x, std::size_t first, std::size_t last, float other) noexcept {
    alignas(64) static constexpr float number[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const detail::native_floats from(static_cast<float>(static_cast<int>(first))),
        to(static_cast<float>(static_cast<int>(last))), rest(other);
    const f32x16 lane = f32x16::load(number);
    f32x16 v;
    for (std::size_t i = 0; i < detail::native_parts; ++i)
        v.part[i] = xsimd::select((lane.part[i] >= from) & (lane.part[i] < to), x.part[i], rest);
    return v;
}

/// `x` where `key` >= `bound`, zero elsewhere.
[[nodiscard]] inline f32x16 zero_below(const f32x16& x, const f32x16& key, float bound) noexcept {
    f32x16 v;
    const detail::native_floats limit(bound), nothing(0.0f);
    for (std::size_t i = 0; i < detail::native_parts; ++i)
        v.part[i] = xsimd::select(key.part[i] >= limit, x.part[i], nothing);
    return v;
}

/// Running sums of the lanes by one fixed tree: lane i becomes the sum of lanes 0 to i.
[[nodiscard]] inline f32x16 running_sums(const f32x16& x) noexcept {
#if defined(__AVX512F__)
    const auto above = [](__m512 of, auto lanes) { // each lane moves up; zeros follow
        return _mm512_castsi512_ps(
            _mm512_alignr_epi32(_mm512_castps_si512(of), _mm512_setzero_si512(), 16 - decltype(lanes)::value));
    };
    __m512 v = x.part[0].data;
    v = _mm512_add_ps(v, above(v, std::integral_constant<int, 1>{}));
    v = _mm512_add_ps(v, above(v, std::integral_constant<int, 2>{}));
    v = _mm512_add_ps(v, above(v, std::integral_constant<int, 4>{}));
    v = _mm512_add_ps(v, above(v, std::integral_constant<int, 8>{}));
    return {{detail::native_floats(v)}};
#else
    alignas(64) float lanes[32] = {};
    f32x16 v = x;
    for (std::size_t by = 1; by < f32x16::lanes; by *= 2) {
        v.store(lanes + f32x16::lanes);
        v = v + f32x16::load(lanes + f32x16::lanes - by);
    }
    return v;
#endif
}

/// Returns whether any lane is greater than `bound`; NaN is not.
[[nodiscard]] inline bool any_above(const f32x16& x, float bound) noexcept {
    const detail::native_floats limit(bound);
    auto above = x.part[0] > limit;
    for (std::size_t i = 1; i < detail::native_parts; ++i)
        above = above | (x.part[i] > limit);
    return xsimd::any(above);
}

/// x * 2^n where `key` >= `bound`, zero elsewhere. `shifted` is n + 1.5 * 2^23. The result is unspecified if n < -126,
/// n > 127 or it is not a normal number.
[[nodiscard]] inline f32x16 scaled_above(const f32x16& x, const f32x16& n, const f32x16& shifted, const f32x16& key,
                                         float bound) noexcept {
#if defined(__AVX512F__)
    static_cast<void>(shifted);
    const __mmask16 above = _mm512_cmp_ps_mask(key.part[0].data, _mm512_set1_ps(bound), _CMP_GE_OQ);
    return {{detail::native_floats(_mm512_maskz_scalef_ps(above, x.part[0].data, n.part[0].data))}};
#else
    static_cast<void>(n);
    f32x16 v;
    const detail::native_floats limit(bound), nothing(0.0f);
    for (std::size_t i = 0; i < detail::native_parts; ++i) {
        // n moves from the low mantissa bits into the exponent.
        const auto bits = xsimd::bitwise_cast<detail::native_integers>(shifted.part[i]);
        const auto power =
            xsimd::bitwise_cast<detail::native_floats>((bits << 23) + detail::native_integers(0x3f800000));
        v.part[i] = xsimd::select(key.part[i] >= limit, x.part[i] * power, nothing);
    }
    return v;
#endif
}

namespace detail {

/// Reduces 16 lanes to one by one fixed tree: i with i + 8, then i + 4, i + 2, i + 1.
template <class Op>
[[nodiscard]] inline float fold(const f32x16& x, Op op) noexcept {
#if defined(__SSE2__)
    using four_floats = xsimd::batch<float, xsimd::sse2>;
#if defined(__AVX__)
    using eight_floats = xsimd::batch<float, xsimd::avx>;
#if defined(__AVX512F__)
    const __m512d all = _mm512_castps_pd(x.part[0].data);
    const eight_floats lower(_mm256_castpd_ps(_mm512_castpd512_pd256(all)));
    const eight_floats upper(_mm256_castpd_ps(_mm512_extractf64x4_pd(all, 1)));
#else
    const eight_floats lower(x.part[0].data), upper(x.part[1].data);
#endif
    const eight_floats eight = op(lower, upper);
    const four_floats four =
        op(four_floats(_mm256_castps256_ps128(eight.data)), four_floats(_mm256_extractf128_ps(eight.data, 1)));
#else
    const four_floats four = op(op(x.part[0], x.part[2]), op(x.part[1], x.part[3]));
#endif
    const four_floats two = op(four, four_floats(_mm_movehl_ps(four.data, four.data)));
    return _mm_cvtss_f32(op(two, four_floats(_mm_shuffle_ps(two.data, two.data, 1))).data);
#else
    alignas(64) float lane[16];
    x.store(lane);
    for (std::size_t half = 8; half > 0; half /= 2)
        for (std::size_t i = 0; i < half; ++i)
            lane[i] = op(lane[i], lane[i + half]);
    return lane[0];
#endif
}

} // namespace detail

/// Sum of the lanes, by one fixed tree.
[[nodiscard]] inline float sum(const f32x16& x) noexcept {
    return detail::fold(x, [](const auto& a, const auto& b) { return a + b; });
}

/// Largest lane.
[[nodiscard]] inline float largest(const f32x16& x) noexcept {
    return detail::fold(x, [](const auto& a, const auto& b) {
        using xsimd::max;
        using std::max;
        return max(a, b);
    });
}

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
