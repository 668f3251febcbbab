// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/kernel/code_quads.hpp>
#include <kvcache/kernel/simd.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

/// Dot products of 16 rows of codes with int16 values. Sums of int32 are exact, so all variants give the same results
/// in any order.
namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// The largest size of a number that meets codes: both its bytes are int8 then, the lower one counted from -128 on.
inline constexpr std::int32_t max_int16_operand = 127 * 256;

/// Bytes of four int16 operands.
inline constexpr std::size_t whole_quad_bytes = 8;

/// Factor of the sum of a query's values, with which sums begin: codes are stored with an offset of 128.
inline constexpr std::int32_t own_by = -128;

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)

/// Rounds 16 numbers, none larger than `max_int16_operand`, and writes them as products of codes read them: the upper
/// bytes of four, then the lower ones, as VNNI multiplies an unsigned byte with a signed one. to: 4 * whole_quad_bytes
/// Returns: their sum.
inline std::int32_t quantize_int16(const f32x16& x, std::byte* to) noexcept {
    const __m512i whole = _mm512_cvtps_epi32(x.part[0].data);
    const __m128i lower = _mm512_cvtepi32_epi8(whole);
    const __m128i upper = _mm512_cvtepi32_epi8(_mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(128)), 8));
    auto* const at = reinterpret_cast<__m128i*>(to);
    _mm_storeu_si128(at, _mm_unpacklo_epi32(upper, lower));
    _mm_storeu_si128(at + 1, _mm_unpackhi_epi32(upper, lower));
    return _mm512_reduce_add_epi32(whole);
}

#elif defined(__AVX2__)

/// Rounds 16 numbers, none larger than `max_int16_operand`, and writes them as products of codes read them: of each
/// four the even ones, then the odd ones. to: 4 * whole_quad_bytes. Returns: their sum.
inline std::int32_t quantize_int16(const f32x16& x, std::byte* to) noexcept {
#if defined(__AVX512F__)
    const __m512i all = _mm512_cvtps_epi32(x.part[0].data);
    const __m256i first = _mm512_castsi512_si256(all), last = _mm512_extracti64x4_epi64(all, 1);
#else
    const __m256i first = _mm256_cvtps_epi32(x.part[0].data), last = _mm256_cvtps_epi32(x.part[1].data);
#endif
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(first, last), 0b11'01'10'00);
    const __m256i turned = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0b11'01'10'00), 0b11'01'10'00);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), turned);
    const __m256i eight = _mm256_add_epi32(first, last);
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
}

#else

/// Rounds 16 numbers, none larger than `max_int16_operand`, and writes them as int16. to: 4 * whole_quad_bytes
/// Returns: their sum.
inline std::int32_t quantize_int16(const f32x16& x, std::byte* to) noexcept {
    const f32x16 magic = f32x16::broadcast(12582912.0f); // 1.5 * 2^23: adding it rounds away the fraction
    alignas(64) float each[16];
    (x + magic - magic).store(each);
    std::int32_t all = 0;
    for (std::size_t i = 0; i < 16; ++i) {
        const auto word = static_cast<std::int16_t>(each[i] >= -32768.0f && each[i] < 32768.0f ? each[i] : -32768.0f);
        std::memcpy(to + 2 * i, &word, sizeof word);
        all += word;
    }
    return all;
}

#endif

/// The same for N queries, interleaved in groups of four values. to: (4, N, whole_quad_bytes). `sums`: sum of each
/// query, times `by`.
template <std::size_t N>
KVCACHE_INLINE inline void quantize_int16(const f32x16 (&x)[N], std::byte* to, std::int32_t by,
                                          std::int32_t (&sums)[N]) noexcept {
    alignas(64) std::byte each[N][4 * whole_quad_bytes];
    const std::byte* from[N];
    for (std::size_t i = 0; i < N; ++i) {
        sums[i] = quantize_int16(x[i], each[i]) * by;
        from[i] = each[i];
    }
    interleave<whole_quad_bytes>(from, to);
}

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)

/// Dot products of N queries with `count` quads of 16 rows from `begin` on. queries: (count, N, whole_quad_bytes).
/// `own`: sum of each query's values, times `own_by`.
template <unsigned Bits, std::size_t N>
KVCACHE_INLINE inline void dots_of(const code_quads<Bits>& of, std::size_t begin, std::size_t count,
                                   const std::byte* queries, const std::int32_t (&own)[N], f32x16 (&to)[N]) noexcept {
    quad_sums upper[N], lower[N];
    KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) {
        upper[i] = quad_sums{}, lower[i] = quad_sums_of(own[i]);
    }
    for_codes<Bits, false>(
        of, begin, count, twice(quad_table(of)),
        [&](std::size_t place, __m512i x) KVCACHE_INLINE {
            KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) {
                const std::byte* const q = queries + (place * N + i) * whole_quad_bytes;
                add_products(upper[i], x, q);
                add_products(lower[i], x, q + 4);
            }
        },
        [&]() KVCACHE_INLINE { queries += 4 * N * whole_quad_bytes; });
    KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) {
        const __m512i both = _mm512_add_epi32(_mm512_slli_epi32(reinterpret_cast<__m512i>(upper[i]), 8),
                                              reinterpret_cast<__m512i>(lower[i]));
        to[i] = {{native_floats(_mm512_cvtepi32_ps(both))}};
    }
}

#elif defined(__AVX2__)

/// Dot products of N queries with `count` quads of 16 rows from `begin` on. queries: (count, N, whole_quad_bytes).
/// `own`: sum of each query's values, times `own_by`.
template <unsigned Bits, std::size_t N>
KVCACHE_INLINE inline void dots_of(const code_quads<Bits>& of, std::size_t begin, std::size_t count,
                                   const std::byte* queries, const std::int32_t (&own)[N], f32x16 (&to)[N]) noexcept {
    __m256i sums[2 * N];
    KVCACHE_UNROLL for (std::size_t i = 0; i < 2 * N; ++i) sums[i] = _mm256_set1_epi32(own[i / 2]);
    const __m256i table = quad_table(of);
    for_quads<Bits>(begin, begin + count, [&](std::size_t quad, std::size_t place) KVCACHE_INLINE {
        __m256i even[2], odd[2];
        KVCACHE_UNROLL for (std::size_t half = 0; half < 2; ++half) {
            const __m256i x = quad_codes(of, quad, place, half, table);
            even[half] = _mm256_and_si256(x, _mm256_set1_epi16(0xFF));
            odd[half] = _mm256_srli_epi16(x, 8);
        }
        KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) {
            const std::byte* const q = queries + ((quad - begin) * N + i) * whole_quad_bytes;
            const __m256i of_even = _mm256_set1_epi32(four_bytes(q)), of_odd = _mm256_set1_epi32(four_bytes(q + 4));
            KVCACHE_UNROLL for (std::size_t half = 0; half < 2; ++half) {
                __m256i sum = sums[2 * i + half];
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(even[half], of_even));
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(odd[half], of_odd));
                keep_order(sum);
                sums[2 * i + half] = sum;
            }
        }
    });
    KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) to[i] = floats_of(sums[2 * i], sums[2 * i + 1]);
}

#else

/// Dot products of N queries with `count` quads of 16 rows from `begin` on. queries: (count, N, whole_quad_bytes).
/// `own`: sum of each query's values, times `own_by`.
template <unsigned Bits, std::size_t N>
inline void dots_of(const code_quads<Bits>& of, std::size_t begin, std::size_t count, const std::byte* queries,
                    const std::int32_t (&)[N], f32x16 (&to)[N]) noexcept {
    std::int32_t sums[N][16] = {};
    for (std::size_t quad = begin; quad < begin + count; ++quad)
        for (std::size_t byte = 0; byte < 64; ++byte)
            for (std::size_t i = 0; i < N; ++i) {
                std::int16_t word;
                std::memcpy(&word, queries + ((quad - begin) * N + i) * whole_quad_bytes + byte % 4 * 2, sizeof word);
                sums[i][byte / 4] += code_at(of, quad, byte) * word;
            }
    for (std::size_t i = 0; i < N; ++i) {
        alignas(64) float whole[16];
        for (std::size_t row = 0; row < 16; ++row)
            whole[row] = static_cast<float>(sums[i][row]);
        to[i] = f32x16::load(whole);
    }
}

#endif

/// Decodes a quad: element i of each of 16 rows into to[i].
template <unsigned Bits>
inline void numbers_of(const code_quads<Bits>& of, std::size_t quad, f32x16 (&to)[4]) noexcept {
    alignas(64) float each[4][16];
#if defined(__AVX2__)
    alignas(64) std::uint8_t bytes[64];
    const __m256i table = quad_table(of);
    for (std::size_t half = 0; half < 2; ++half)
        _mm256_store_si256(reinterpret_cast<__m256i*>(bytes + 32 * half),
                           quad_codes(of, quad, quad % code_quads<Bits>::per, half, table));
    for (std::size_t byte = 0; byte < 64; ++byte)
        each[byte % 4][byte / 4] = static_cast<float>(int{bytes[byte]} - 128);
#else
    for (std::size_t byte = 0; byte < 64; ++byte)
        each[byte % 4][byte / 4] = static_cast<float>(code_at(of, quad, byte));
#endif
    for (std::size_t i = 0; i < 4; ++i)
        to[i] = f32x16::load(each[i]);
}

}}} // namespace kvcache::detail
