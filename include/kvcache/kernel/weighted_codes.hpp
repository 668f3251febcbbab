// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/kernel/dot_codes.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

// Weighted sums of values over the 16 tokens of a tile: codes of 16 adjacent elements of head_dim times integer
// weights. One column is four quads, so everything stays in registers, and the loop and zero-point overhead of
// `dot_codes_int8` and `dot_codes_int16` is avoided. Sums are exact, so all variants give the same results in any
// order.

/// Operand for 8-bit codes: int16. The added error is about 1 % of the quantization error.
struct int16_operand {
    static constexpr std::size_t bytes = 4 * whole_quad_bytes; ///< Bytes of 16 values.
    static constexpr std::size_t quad_bytes = whole_quad_bytes;
    static constexpr std::int32_t largest = max_int16_operand;
    template <std::size_t N>
    KVCACHE_INLINE static void put(const f32x16 (&x)[N], std::byte* to, std::int32_t by,
                                   std::int32_t (&sums)[N]) noexcept {
        quantize_int16(x, to, by, sums);
    }
};

/// Operand for shorter codes: int8. The added error is about 1 % of the error of 4-bit codes.
struct int8_operand {
    static constexpr std::size_t bytes = 4 * byte_quad_bytes; ///< Bytes of 16 values.
    static constexpr std::size_t quad_bytes = byte_quad_bytes;
    static constexpr std::int32_t largest = max_int8_operand;
    template <std::size_t N>
    KVCACHE_INLINE static void put(const f32x16 (&x)[N], std::byte* to, std::int32_t by,
                                   std::int32_t (&sums)[N]) noexcept {
        quantize_int8(x, to, by, sums);
    }
};

template <unsigned Bits>
using operand_for = std::conditional_t<Bits == 8, int16_operand, int8_operand>;

/// Factor of the sum of a query's values in dot products with codes: the first value of the table.
template <unsigned Bits>
[[nodiscard]] KVCACHE_INLINE inline std::int32_t first_of(const code_quads<Bits>& of) noexcept {
    if constexpr (Bits == 8)
        return own_by;
    else
        return of.table[0];
}

/// Dot products of N queries with `count` quads of 16 rows, by dot_codes_int16 or dot_codes_int8. `own`: sum of each
/// query's values, times first_of.
template <unsigned Bits, bool Linear, std::size_t N>
KVCACHE_INLINE inline void dot_codes(const code_quads<Bits>& of, std::size_t begin, std::size_t count,
                                     const std::byte* queries, const std::int32_t (&own)[N], f32x16 (&to)[N]) noexcept {
    if constexpr (Bits == 8)
        dot_codes_int16<Bits, N>(of, begin, count, queries, own, to);
    else
        dot_codes_int8<Bits, Linear, N>(of, begin, count, queries, own, to);
}

/// Largest magnitude in a table for `column_weights`: the sum of four products with bytes fits int16 then. A linear
/// table begins at a magnitude of at most 15.
inline constexpr int largest_level = 63;

#if defined(__AVX2__) && !(defined(__AVX512VNNI__) && defined(__AVX512BW__))

/// Integer weights of 16 tokens, for N queries.
template <unsigned Bits, bool Linear, std::size_t N>
class column_weights {
public:
    /// Rounds weights of magnitude at most operand_for<Bits>::largest.
    KVCACHE_INLINE void put(const code_quads<Bits>& of, const f32x16 (&x)[N]) noexcept {
        if constexpr (Bits == 8) {
            KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) put_words(i, x[i]);
        } else {
            signs_ = 0;
            KVCACHE_UNROLL for (std::size_t pair = 0; pair < (N + 1) / 2; ++pair)
                put_pair(of, pair, x[2 * pair], x[std::min(2 * pair + 1, N - 1)]);
        }
    }

    /// Sums of codes times weights, for element 16 * column of head_dim and the 15 after it.
    KVCACHE_INLINE void dots(const code_quads<Bits>& of, std::size_t column, f32x16 (&to)[N]) const noexcept {
        if constexpr (Bits == 8)
            dots_of_words(of, column * 4, to);
        else if constexpr (Linear)
            dots_of_places(of, column * 4, to);
        else if (signs_ == 0)
            dots_of_levels<false>(of, column * 4, to);
        else
            dots_of_levels<true>(of, column * 4, to);
    }

private:
    // Order of tokens: 0 to 3, 8 to 11, 4 to 7, 12 to 15; of each four the even ones first.
    KVCACHE_INLINE void put_words(std::size_t i, const f32x16& x) noexcept {
        const auto [first, last] = rounded(x);
        const __m256i even_first =
            _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
        _mm256_store_si256(reinterpret_cast<__m256i*>(whole_[i]),
                           _mm256_shuffle_epi8(_mm256_packs_epi32(first, last), even_first));
    }

    // The same tokens of one query, then of the next, in both halves.
    KVCACHE_INLINE void put_pair(const code_quads<Bits>& of, std::size_t pair, const f32x16& a,
                                 const f32x16& b) noexcept {
        const auto [a_first, a_last] = rounded(a);
        const auto [b_first, b_last] = rounded(b);
        const __m256i bytes =
            _mm256_packs_epi16(_mm256_packs_epi32(a_first, a_last), _mm256_packs_epi32(b_first, b_last));
        _mm256_store_si256(reinterpret_cast<__m256i*>(whole_[pair]), bytes);
        if constexpr (Linear) {
            const __m256i up = _mm256_sad_epu8(_mm256_xor_si256(bytes, _mm256_set1_epi8(static_cast<char>(0x80))),
                                               _mm256_setzero_si256());
            const __m128i both = _mm_add_epi64(_mm256_castsi256_si128(up), _mm256_extracti128_si256(up, 1));
            const __m128i own =
                _mm_mullo_epi32(_mm_sub_epi32(both, _mm_set1_epi32(16 * 128)), _mm_set1_epi32(of.table[0]));
            const __m128i part = _mm_srai_epi32(own, 1); // split in two: the initial values of the sums of pairs
            const __m128i parts = _mm_blend_epi16(part, _mm_slli_epi32(_mm_sub_epi32(own, part), 16), 0b10101010);
            _mm_storel_epi64(reinterpret_cast<__m128i*>(starts_ + 2 * pair), _mm_shuffle_epi32(parts, 0b00'00'10'00));
        } else {
            signs_ |= _mm256_movemask_epi8(bytes);
        }
    }

    struct halves {
        __m256i first, last;
    };
    [[nodiscard]] KVCACHE_INLINE static halves rounded(const f32x16& x) noexcept {
#if defined(__AVX512F__)
        const __m512i all = _mm512_cvtps_epi32(x.part[0].data);
        return {_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1)};
#else
        return {_mm256_cvtps_epi32(x.part[0].data), _mm256_cvtps_epi32(x.part[1].data)};
#endif
    }

    // The weights of a quad; `of_odd` selects those of its odd tokens, for 8-bit codes.
    [[nodiscard]] KVCACHE_INLINE __m256i four(std::size_t i, std::size_t quad, std::size_t of_odd = 0) const noexcept {
        constexpr std::size_t order[] = {0, 2, 1, 3};
        if constexpr (Bits == 8)
            return _mm256_set1_epi32(four_bytes(whole_[i] + order[quad] * 8 + of_odd * 4));
        else
            return _mm256_set1_epi32(four_bytes(whole_[i / 2] + quad % 2 * 16 + i % 2 * 8 + quad / 2 * 4));
    }

    KVCACHE_INLINE void dots_of_words(const code_quads<Bits>& of, std::size_t begin, f32x16 (&to)[N]) const noexcept {
        __m256i sums[2 * N];
        KVCACHE_UNROLL for (std::size_t quad = 0; quad < 4; ++quad) {
            __m256i even[2], odd[2];
            KVCACHE_UNROLL for (std::size_t half = 0; half < 2; ++half) {
                const __m256i x =
                    _mm256_loadu_si256(reinterpret_cast<const __m256i*>(of.codes + (begin + quad) * 64 + half * 32));
                even[half] = _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8);
                odd[half] = _mm256_srai_epi16(x, 8);
            }
            KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) {
                const __m256i of_even = four(i, quad), of_odd = four(i, quad, 1);
                KVCACHE_UNROLL for (std::size_t half = 0; half < 2; ++half) {
                    __m256i sum = sums[2 * i + half];
                    const __m256i products = _mm256_madd_epi16(even[half], of_even);
                    sum = quad == 0 ? products : _mm256_add_epi32(sum, products);
                    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(odd[half], of_odd));
                    keep_order(sum);
                    sums[2 * i + half] = sum;
                }
            }
        }
        KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) to[i] = floats_of(sums[2 * i], sums[2 * i + 1]);
    }

    KVCACHE_INLINE void dots_of_places(const code_quads<Bits>& of, std::size_t begin, f32x16 (&to)[N]) const noexcept {
        __m256i words[2 * N];
        KVCACHE_UNROLL for (std::size_t i = 0; i < 2 * N; ++i) words[i] = _mm256_set1_epi32(starts_[i / 2]);
        KVCACHE_UNROLL for (std::size_t quad = 0; quad < 4; ++quad) {
            __m256i x[2];
            KVCACHE_UNROLL for (std::size_t half = 0; half < 2; ++half) x[half] =
                quad_places(of, begin + quad, quad % code_quads<Bits>::per, half);
            KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) {
                const __m256i weights = four(i, quad);
                KVCACHE_UNROLL for (std::size_t half = 0; half < 2; ++half) {
                    __m256i sum = words[2 * i + half];
                    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(x[half], weights));
                    keep_order(sum);
                    words[2 * i + half] = sum;
                }
            }
        }
        const __m256i ones = _mm256_set1_epi16(1);
        KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) to[i] =
            floats_of(_mm256_madd_epi16(words[2 * i], ones), _mm256_madd_epi16(words[2 * i + 1], ones));
    }

    // Weights are rarely negative: only negative scales make them so.
    template <bool Signed>
    KVCACHE_INLINE void dots_of_levels(const code_quads<Bits>& of, std::size_t begin, f32x16 (&to)[N]) const noexcept {
        const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(of.table)));
        const __m256i ones = _mm256_set1_epi16(1);
        __m256i sums[2 * N];
        KVCACHE_UNROLL for (std::size_t two = 0; two < 2; ++two) {
            __m256i words[2 * N];
            KVCACHE_UNROLL for (std::size_t one = 0; one < 2; ++one) {
                const std::size_t quad = 2 * two + one;
                __m256i x[2];
                KVCACHE_UNROLL for (std::size_t half = 0; half < 2; ++half) x[half] =
                    quad_codes(of, begin + quad, quad % code_quads<Bits>::per, half, table);
                KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) {
                    const __m256i weights = four(i, quad);
                    KVCACHE_UNROLL for (std::size_t half = 0; half < 2; ++half) {
                        const __m256i pairs =
                            Signed ? _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(x[half], weights))
                                   : _mm256_maddubs_epi16(weights, x[half]);
                        __m256i sum = words[2 * i + half];
                        sum = one == 0 ? pairs : _mm256_add_epi16(sum, pairs);
                        keep_order(sum);
                        words[2 * i + half] = sum;
                    }
                }
            }
            KVCACHE_UNROLL for (std::size_t i = 0; i < 2 * N; ++i) {
                const __m256i products = _mm256_madd_epi16(words[i], ones);
                __m256i sum = two == 0 ? products : _mm256_add_epi32(sums[i], products);
                keep_order(sum);
                sums[i] = sum;
            }
        }
        KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) to[i] = floats_of(sums[2 * i], sums[2 * i + 1]);
    }

    static constexpr std::size_t rows = Bits == 8 ? N : (N + 1) / 2;
    alignas(32) std::byte whole_[rows][32];
    std::int32_t starts_[(N + 1) / 2 * 2];
    int signs_ = 0;
};

#else

/// Integer weights of 16 tokens, for N queries.
template <unsigned Bits, bool Linear, std::size_t N>
class column_weights {
    using numbers = operand_for<Bits>;

public:
    /// Rounds weights of magnitude at most numbers::largest.
    KVCACHE_INLINE void put(const code_quads<Bits>& of, const f32x16 (&x)[N]) noexcept {
        numbers::put(x, whole_, first_of<Bits>(of), own_);
    }

    /// Sums of codes times weights, for element 16 * column of head_dim and the 15 after it.
    KVCACHE_INLINE void dots(const code_quads<Bits>& of, std::size_t column, f32x16 (&to)[N]) const noexcept {
        dot_codes<Bits, Linear, N>(of, column * 4, 4, whole_, own_, to);
    }

private:
    alignas(64) std::byte whole_[N * numbers::bytes];
    std::int32_t own_[N];
};

#endif

}}} // namespace kvcache::detail
