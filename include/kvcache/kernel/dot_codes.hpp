// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/kernel/code_quads.hpp>
#include <kvcache/kernel/simd.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

// Dot products of 16 rows of codes with int16 values, or with int8 values for codes of at most 4 bits, which take half
// the instructions and add about 1 % of the quantization error. Sums of int32 are exact, so all variants give the same
// results in any order.

#if !defined(__AVX2__)

/// Rounds 16 numbers and writes them as `Number`; a number out of range becomes the smallest. Returns: their sum.
template <class Number>
inline std::int32_t quantize_scalar(const f32x16& x, std::byte* to) noexcept {
    constexpr auto least = static_cast<float>(std::numeric_limits<Number>::min());
    const f32x16 magic = f32x16::broadcast(12582912.0f); // 1.5 * 2^23: adding it rounds away the fraction
    alignas(64) float each[16];
    (x + magic - magic).store(each);
    std::int32_t all = 0;
    for (std::size_t i = 0; i < 16; ++i) {
        const auto number = static_cast<Number>(each[i] >= least && each[i] < -least ? each[i] : least);
        std::memcpy(to + sizeof(Number) * i, &number, sizeof number);
        all += number;
    }
    return all;
}

/// Dot products of N queries of `Number` with `count` quads of 16 rows from `begin` on.
template <class Number, unsigned Bits, std::size_t N>
inline void dot_codes_scalar(const code_quads<Bits>& of, std::size_t begin, std::size_t count, const std::byte* queries,
                             f32x16 (&to)[N]) noexcept {
    std::int32_t sums[N][16] = {};
    for (std::size_t quad = begin; quad < begin + count; ++quad)
        for (std::size_t byte = 0; byte < 64; ++byte)
            for (std::size_t i = 0; i < N; ++i) {
                Number number;
                std::memcpy(&number, queries + (((quad - begin) * N + i) * 4 + byte % 4) * sizeof number,
                            sizeof number);
                sums[i][byte / 4] += code_at(of, quad, byte) * number;
            }
    for (std::size_t i = 0; i < N; ++i) {
        alignas(64) float whole[16];
        for (std::size_t row = 0; row < 16; ++row)
            whole[row] = static_cast<float>(sums[i][row]);
        to[i] = f32x16::load(whole);
    }
}

#endif

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
    return quantize_scalar<std::int16_t>(x, to);
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

/// Dot products of N queries with `count` quads of 16 rows from `begin` on. queries: (count, N, whole_quad_bytes).
/// `own`: sum of each query's values, times `own_by`.
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)

template <unsigned Bits, std::size_t N>
KVCACHE_INLINE inline void dot_codes_int16(const code_quads<Bits>& of, std::size_t begin, std::size_t count,
                                           const std::byte* queries, const std::int32_t (&own)[N],
                                           f32x16 (&to)[N]) noexcept {
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

template <unsigned Bits, std::size_t N>
KVCACHE_INLINE inline void dot_codes_int16(const code_quads<Bits>& of, std::size_t begin, std::size_t count,
                                           const std::byte* queries, const std::int32_t (&own)[N],
                                           f32x16 (&to)[N]) noexcept {
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

template <unsigned Bits, std::size_t N>
inline void dot_codes_int16(const code_quads<Bits>& of, std::size_t begin, std::size_t count, const std::byte* queries,
                            const std::int32_t (&)[N], f32x16 (&to)[N]) noexcept {
    dot_codes_scalar<std::int16_t>(of, begin, count, queries, to);
}

#endif

/// Decodes a quad: element i of each of 16 rows into to[i].
template <unsigned Bits>
inline void numbers_of(const code_quads<Bits>& of, std::size_t quad, f32x16 (&to)[4]) noexcept {
#if defined(__AVX2__)
    const __m256i table = quad_table(of), byte = _mm256_set1_epi32(0xff), middle = _mm256_set1_epi32(128);
    __m256i rows[2]; // the four bytes of eight rows each
    for (std::size_t half = 0; half < 2; ++half)
        rows[half] = quad_codes(of, quad, quad % code_quads<Bits>::per, half, table);
    for (std::size_t i = 0; i < 4; ++i) {
        to[i] = floats_of(_mm256_sub_epi32(_mm256_and_si256(rows[0], byte), middle),
                          _mm256_sub_epi32(_mm256_and_si256(rows[1], byte), middle));
        for (__m256i& half : rows)
            half = _mm256_srli_epi32(half, 8);
    }
#else
    alignas(64) float each[4][16];
    for (std::size_t byte = 0; byte < 64; ++byte)
        each[byte % 4][byte / 4] = static_cast<float>(code_at(of, quad, byte));
    for (std::size_t i = 0; i < 4; ++i)
        to[i] = f32x16::load(each[i]);
#endif
}

/// The largest size of a number that meets codes of 4 bits or less.
inline constexpr std::int32_t max_int8_operand = 127;

/// Bytes of four int8 operands.
inline constexpr std::size_t byte_quad_bytes = 4;

/// Largest difference between two values of a table. Pairs of products fit int16 then.
inline constexpr int widest_table = 126;

#if defined(__AVX2__)

/// Rounds 16 numbers, none larger than `max_int8_operand`, and writes them as int8. to: 4 * byte_quad_bytes
/// Returns: their sum.
KVCACHE_INLINE inline std::int32_t quantize_int8(const f32x16& x, std::byte* to) noexcept {
#if defined(__AVX512F__)
    const __m128i bytes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x.part[0].data));
#else
    const __m256i words = _mm256_permute4x64_epi64(
        _mm256_packs_epi32(_mm256_cvtps_epi32(x.part[0].data), _mm256_cvtps_epi32(x.part[1].data)), 0b11'01'10'00);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
#endif
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
    const __m128i eights =
        _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8(static_cast<char>(0x80))), _mm_setzero_si128());
    return _mm_cvtsi128_si32(_mm_add_epi32(eights, _mm_unpackhi_epi64(eights, eights))) - 16 * 128;
}

#if defined(__AVX512BW__) || !defined(__AVX512F__)

/// The same for four queries, interleaved in groups of four values, which is the order that the pack instructions give.
/// to: (4, 4, byte_quad_bytes). `sums`: sum of each query, times `by`.
KVCACHE_INLINE inline void put_four(const f32x16 (&x)[4], std::byte* to, std::int32_t by,
                                    std::int32_t (&sums)[4]) noexcept {
#if defined(__AVX512BW__)
    __m512i whole[4];
    KVCACHE_UNROLL for (std::size_t i = 0; i < 4; ++i) whole[i] = _mm512_cvtps_epi32(x[i].part[0].data);
    const __m512i bytes =
        _mm512_packs_epi16(_mm512_packs_epi32(whole[0], whole[1]), _mm512_packs_epi32(whole[2], whole[3]));
    _mm512_storeu_si512(to, bytes);
#if defined(__AVX512VNNI__)
    const __m512i each = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), bytes);
#else
    const __m512i each = _mm512_madd_epi16(_mm512_maddubs_epi16(_mm512_set1_epi8(1), bytes), _mm512_set1_epi16(1));
#endif
    const __m256i two = _mm256_add_epi32(_mm512_castsi512_si256(each), _mm512_extracti64x4_epi64(each, 1));
#else
    __m256i two = _mm256_setzero_si256();
    KVCACHE_UNROLL for (std::size_t half = 0; half < 2; ++half) {
        __m256i whole[4];
        KVCACHE_UNROLL for (std::size_t i = 0; i < 4; ++i) whole[i] = _mm256_cvtps_epi32(x[i].part[half].data);
        const __m256i bytes =
            _mm256_packs_epi16(_mm256_packs_epi32(whole[0], whole[1]), _mm256_packs_epi32(whole[2], whole[3]));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 32 * half), bytes);
        two = _mm256_add_epi32(
            two, _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes), _mm256_set1_epi16(1)));
    }
#endif
    const __m128i all = _mm_add_epi32(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(sums), _mm_mullo_epi32(all, _mm_set1_epi32(by)));
}

#endif

#else

/// Rounds 16 numbers, none larger than `max_int8_operand`, and writes them as int8. to: 4 * byte_quad_bytes
/// Returns: their sum.
inline std::int32_t quantize_int8(const f32x16& x, std::byte* to) noexcept {
    return quantize_scalar<std::int8_t>(x, to);
}

#endif

/// The same for N queries, interleaved in groups of four values. to: (4, N, byte_quad_bytes). `sums`: sum of each
/// query, times `by`.
template <std::size_t N>
KVCACHE_INLINE inline void quantize_int8(const f32x16 (&x)[N], std::byte* to, std::int32_t by,
                                         std::int32_t (&sums)[N]) noexcept {
    std::byte each[N][4 * byte_quad_bytes];
    const std::byte* from[N];
    for (std::size_t i = 0; i < N; ++i) {
        sums[i] = quantize_int8(x[i], each[i]) * by;
        from[i] = each[i];
    }
    interleave<byte_quad_bytes>(from, to);
}
#if defined(__AVX2__) && (defined(__AVX512BW__) || !defined(__AVX512F__))
KVCACHE_INLINE inline void quantize_int8(const f32x16 (&x)[4], std::byte* to, std::int32_t by,
                                         std::int32_t (&sums)[4]) noexcept {
    put_four(x, to, by, sums);
}
#endif

/// Returns whether every value of a table is its index plus the first value.
template <unsigned Bits>
[[nodiscard]] inline bool is_linear(const std::int8_t* table) noexcept {
    return Bits == 4 && table[15] - table[0] == 15;
}

#if defined(__AVX2__)

/// The values of a table minus its first value.
template <unsigned Bits>
[[nodiscard]] KVCACHE_INLINE inline __m256i upward_table(const code_quads<Bits>& of) noexcept {
    return _mm256_sub_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(of.table))),
                           _mm256_set1_epi8(static_cast<char>(of.table[0])));
}

#endif

/// Dot products of N queries with `count` quads of 16 rows from `begin` on. queries: (count, N, byte_quad_bytes).
/// `own`: sum of each query's values, times the first value of the table. `Linear`: as in is_linear. Requires: tables
/// ascend and are no wider than `widest_table`.
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)

template <unsigned Bits, bool Linear, std::size_t N>
KVCACHE_INLINE inline void dot_codes_int8(const code_quads<Bits>& of, std::size_t begin, std::size_t count,
                                          const std::byte* queries, const std::int32_t (&own)[N],
                                          f32x16 (&to)[N]) noexcept {
    quad_sums sums[N];
    KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) sums[i] = quad_sums_of(own[i]);
    for_codes<Bits, Linear>(
        of, begin, count, twice(upward_table(of)),
        [&](std::size_t place, __m512i x) KVCACHE_INLINE {
            KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i)
                add_products(sums[i], x, queries + (place * N + i) * byte_quad_bytes);
        },
        [&]() KVCACHE_INLINE { queries += 4 * N * byte_quad_bytes; });
    KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) {
        to[i] = {{native_floats(_mm512_cvtepi32_ps(reinterpret_cast<__m512i>(sums[i])))}};
    }
}

#elif defined(__AVX2__)

template <unsigned Bits, bool Linear, std::size_t N>
KVCACHE_INLINE inline void dot_codes_int8(const code_quads<Bits>& of, std::size_t begin, std::size_t count,
                                          const std::byte* queries, const std::int32_t (&own)[N],
                                          f32x16 (&to)[N]) noexcept {
    __m256i sums[2 * N];
    const __m256i table = upward_table(of), ones = _mm256_set1_epi16(1);
    // With a linear table, the sum of eight pairs of products fits int16: 8 * 2 * 15 * 127.
    constexpr std::size_t at_once = 8;
    __m256i words[2 * N];
    const auto multiply = [&](std::size_t quad, std::size_t place) KVCACHE_INLINE {
        __m256i x[2];
        KVCACHE_UNROLL for (std::size_t half = 0; half < 2; ++half) x[half] =
            Linear ? quad_places(of, quad, place, half) : quad_codes(of, quad, place, half, table);
        KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) {
            const __m256i four = _mm256_set1_epi32(four_bytes(queries + ((quad - begin) * N + i) * byte_quad_bytes));
            KVCACHE_UNROLL for (std::size_t half = 0; half < 2; ++half) {
                const __m256i pairs = _mm256_maddubs_epi16(x[half], four);
                __m256i& of_array = Linear ? words[2 * i + half] : sums[2 * i + half];
                __m256i sum = of_array;
                if constexpr (Linear)
                    sum = _mm256_add_epi16(sum, pairs);
                else
                    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
                keep_order(sum);
                of_array = sum;
            }
        }
    };
    if constexpr (Linear)
        if (count == at_once) { // a group of 32, the usual size: no sum is kept in memory
            KVCACHE_UNROLL for (std::size_t i = 0; i < 2 * N; ++i) words[i] = _mm256_setzero_si256();
            for_quads<Bits>(begin, begin + at_once, multiply);
            KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) {
                const __m256i from = _mm256_set1_epi32(own[i]);
                to[i] = floats_of(_mm256_add_epi32(from, _mm256_madd_epi16(words[2 * i], ones)),
                                  _mm256_add_epi32(from, _mm256_madd_epi16(words[2 * i + 1], ones)));
            }
            return;
        }
    KVCACHE_UNROLL for (std::size_t i = 0; i < 2 * N; ++i) sums[i] = _mm256_set1_epi32(own[i / 2]);
    const std::size_t end = begin + count;
    for (std::size_t first = begin; first < end; first += at_once) {
        if constexpr (Linear)
            KVCACHE_UNROLL for (std::size_t i = 0; i < 2 * N; ++i) words[i] = _mm256_setzero_si256();
        for_quads<Bits>(first, std::min(end, first + at_once), multiply);
        if constexpr (Linear)
            KVCACHE_UNROLL for (std::size_t i = 0; i < 2 * N; ++i) sums[i] =
                _mm256_add_epi32(sums[i], _mm256_madd_epi16(words[i], ones));
    }
    KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) to[i] = floats_of(sums[2 * i], sums[2 * i + 1]);
}

#else

template <unsigned Bits, bool Linear, std::size_t N>
inline void dot_codes_int8(const code_quads<Bits>& of, std::size_t begin, std::size_t count, const std::byte* queries,
                           const std::int32_t (&)[N], f32x16 (&to)[N]) noexcept {
    dot_codes_scalar<std::int8_t>(of, begin, count, queries, to);
}

#endif

}}} // namespace kvcache::detail
