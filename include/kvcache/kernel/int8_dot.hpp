// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/memory.hpp>
#include <kvcache/core/platform/machine.hpp>
#include <kvcache/kernel/gemm_packing.hpp>
#include <kvcache/kernel/native.hpp>
#include <kvcache/kernel/simd.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

// Dot products of four bytes for 16 outputs at once. Sums of int32 are exact, so all variants give the same results.

#if defined(__AVX512VNNI__)

/// Activation in the format of the dot-product instruction. VNNI needs one unsigned operand, so 128 is added, and 128
/// times the sum of the weights is subtracted from the result.
using int8_activation = std::uint8_t;
inline constexpr std::int32_t activation_offset = 128;

/// Vectors for four inputs of 16 outputs, and for their running sums.
inline constexpr std::size_t int8_parts = 1;
/// Rows and panels of 16 outputs processed together, so that their sums stay in registers: 8 x 3 needs fewer loads than
/// 12 x 2 or 12 x 1.
inline constexpr std::size_t int8_rows_together = 8;
inline constexpr std::size_t int8_panels_together = 3;
/// Panels processed together for a single row.
inline constexpr std::size_t int8_panels_of_one = 8;
/// As int32: GCC 12 copies a running __m512i, which has int64 lanes, around each dot product.
using int8_vector = std::int32_t __attribute__((vector_size(64)));

[[nodiscard]] KVCACHE_INLINE inline int8_vector no_sums() noexcept {
    return int8_vector{};
}
[[nodiscard]] KVCACHE_INLINE inline __m512i load_weights(const std::int8_t* from, std::size_t) noexcept {
    return _mm512_loadu_si512(from);
}
/// Broadcasts four activations to all outputs.
[[nodiscard]] KVCACHE_INLINE inline __m512i load_four(const int8_activation* x) noexcept {
    std::int32_t four;
    std::memcpy(&four, x, sizeof four);
    return _mm512_set1_epi32(four);
}
[[nodiscard]] KVCACHE_INLINE inline int8_vector add_dots(int8_vector sums, __m512i weights, __m512i four) noexcept {
    return reinterpret_cast<int8_vector>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sums), four, weights));
}
inline void store_sums(const int8_vector* sums, std::int32_t* to) noexcept {
    _mm512_storeu_si512(to, reinterpret_cast<__m512i>(sums[0]));
}
/// Removes the offset from 16 sums. `weights`: sums of the weights. (16)
[[nodiscard]] KVCACHE_INLINE inline f32x16 exact_sums(const int8_vector* sums, const std::int32_t* weights) noexcept {
    const __m512i offset = _mm512_slli_epi32(_mm512_loadu_si512(weights), 7); // times 128
    return {{native_floats(_mm512_cvtepi32_ps(_mm512_sub_epi32(reinterpret_cast<__m512i>(sums[0]), offset)))}};
}
/// Writes 16 floats with integer values, of magnitude at most 127, as activations.
KVCACHE_INLINE inline void put_activations(const f32x16& x, int8_activation* to) noexcept {
    const __m512i whole = _mm512_add_epi32(_mm512_cvtps_epi32(x.part[0].data), _mm512_set1_epi32(activation_offset));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(whole));
}

#elif defined(__AVX2__)

using int8_activation = std::int16_t; // int16, since many rows are read in pairs: int8_words
inline constexpr std::int32_t activation_offset = 0;

inline constexpr std::size_t int8_parts = 2; // eight outputs each
using int8_vector = __m256i;

inline constexpr std::size_t int8_rows_together = 2;
inline constexpr std::size_t int8_panels_together = 3;
inline constexpr std::size_t int8_panels_of_one = 8; // their sums spill to the L1 cache while waiting for memory

/// Four activations, broadcast to all outputs.
struct int8_four {
    __m256i levels, sizes;
};

/// Keeps steps in order: a compiler that loads everything first runs out of registers for the sums.
[[nodiscard]] KVCACHE_INLINE inline int8_vector in_order(int8_vector x) noexcept {
#if defined(__GNUC__)
    asm volatile("" : "+x"(x));
#endif
    return x;
}

[[nodiscard]] KVCACHE_INLINE inline int8_vector no_sums() noexcept {
    return _mm256_setzero_si256();
}
[[nodiscard]] KVCACHE_INLINE inline const __m256i* load_weights(const std::int8_t* from, std::size_t part) noexcept {
    return reinterpret_cast<const __m256i*>(from + 32 * part); // read at the point of use, for lack of registers
}
[[nodiscard]] KVCACHE_INLINE inline int8_four load_four(const int8_activation* x) noexcept {
    std::int64_t four;
    std::memcpy(&four, x, sizeof four);
    const __m256i words = _mm256_set1_epi64x(four), levels = _mm256_packs_epi16(words, words);
    return {levels, _mm256_abs_epi8(levels)};
}
/// VPMADDUBSW needs one unsigned operand: the signs of the activations move to the weights. Pairs of products are at
/// most 2 * 127 * 127, which fits int16.
[[nodiscard]] KVCACHE_INLINE inline int8_vector add_dots(int8_vector sums, const __m256i* weights,
                                                         const int8_four& four) noexcept {
    const __m256i with_signs = _mm256_sign_epi8(_mm256_loadu_si256(weights), four.levels);
    const __m256i pairs = _mm256_maddubs_epi16(four.sizes, with_signs);
    return in_order(_mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))));
}
inline void store_sums(const int8_vector* sums, std::int32_t* to) noexcept {
    for (std::size_t i = 0; i < int8_parts; ++i)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 8 * i), sums[i]);
}
/// Writes 16 floats with integer values, of magnitude at most 127, as activations.
KVCACHE_INLINE inline void put_activations(const f32x16& x, int8_activation* to) noexcept {
#if defined(__AVX512F__)
    const __m256i words = _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x.part[0].data));
#else
    const __m256i words = _mm256_permute4x64_epi64(
        _mm256_packs_epi32(_mm256_cvtps_epi32(x.part[0].data), _mm256_cvtps_epi32(x.part[1].data)), 0b11'01'10'00);
#endif
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), words);
}

#else

using int8_activation = std::int8_t;
inline constexpr std::int32_t activation_offset = 0;

inline constexpr std::size_t int8_parts = 1;
struct int8_vector {
    std::int32_t lanes[16];
};

inline constexpr std::size_t int8_rows_together = 2;
inline constexpr std::size_t int8_panels_together = 1;
inline constexpr std::size_t int8_panels_of_one = 1;

[[nodiscard]] inline int8_vector no_sums() noexcept {
    return {};
}
struct int8_weights {
    const std::int8_t* bytes;
};
[[nodiscard]] inline int8_weights load_weights(const std::int8_t* from, std::size_t) noexcept {
    return {from};
}
[[nodiscard]] inline const int8_activation* load_four(const int8_activation* x) noexcept {
    return x;
}
[[nodiscard]] inline int8_vector add_dots(int8_vector sums, int8_weights w, const int8_activation* four) noexcept {
    for (std::size_t output = 0; output < 16; ++output)
        for (std::size_t i = 0; i < 4; ++i)
            sums.lanes[output] += std::int32_t{w.bytes[output * 4 + i]} * four[i];
    return sums;
}
inline void store_sums(const int8_vector* sums, std::int32_t* to) noexcept {
    std::memcpy(to, sums->lanes, sizeof sums->lanes);
}
/// Writes 16 floats with integer values, of magnitude at most 127, as activations.
inline void put_activations(const f32x16& x, int8_activation* to) noexcept {
    alignas(64) float each[16];
    x.store(each);
    for (std::size_t lane = 0; lane < 16; ++lane)
        to[lane] = static_cast<int8_activation>(static_cast<std::int32_t>(each[lane]) + activation_offset);
}

#endif

#if !defined(__AVX512VNNI__)
/// Removes the offset from 16 sums. `weights`: sums of the weights. (16)
[[nodiscard]] inline f32x16 exact_sums(const int8_vector* sums, const std::int32_t*) noexcept {
    static_assert(activation_offset == 0);
    std::int32_t exact[16];
    store_sums(sums, exact);
    alignas(64) float each[16];
    for (std::size_t i = 0; i < 16; ++i)
        each[i] = static_cast<float>(exact[i]);
    return f32x16::load(each);
}
#endif

// Int8 GEMM of many rows on machines without a byte dot product but with one of pairs of int16: weights are widened
// once for all rows, and rows are packed.

#if defined(__AVX2__) && !defined(__AVX512VNNI__)
#define KVCACHE_INT8_WORDS
#endif

// Two inputs of a row.
struct word_pair {
    std::int16_t words[2];
};

#if defined(KVCACHE_INT8_WORDS)

// Fewer rows do not repay the widening.
inline constexpr std::size_t fewest_word_rows = 17;

// Groups of four inputs in a block: their words stay in the L1 cache.
inline constexpr std::size_t word_fours = 160;

// Rows in blocks as equal as possible, each in tiles.
struct word_blocks {
    static constexpr std::size_t most_tiles = 22; // their packed rows stay in the L2 cache

    explicit word_blocks(std::size_t all)
        : rows(all), count((all + most_tiles * packed_rows - 1) / (most_tiles * packed_rows)) {}
    [[nodiscard]] std::size_t begin(std::size_t block) const { return rows * block / count; }
    [[nodiscard]] row_tiles tiles(std::size_t block) const { return row_tiles(begin(block + 1) - begin(block)); }
    // Index of a tile's packed rows.
    [[nodiscard]] static std::size_t place(std::size_t block, std::size_t tile) { return block * most_tiles + tile; }

    std::size_t rows, count;
};

// A panel's weights for a block of inputs, widened: for each pair of inputs the 16 outputs, two words each.
struct int8_words {
    alignas(line_bytes) std::int16_t data[word_fours * 64];

    // (fours, 16, 4) -> (2 * fours, 16, 2). `next`: weights to prefetch.
    void widen(const std::int8_t* from, std::size_t fours, const std::int8_t* next) noexcept {
        for (std::size_t four = 0; four < fours; ++four) {
            prefetch_soon(next, four * 64);
            KVCACHE_UNROLL for (std::size_t half = 0; half < 2; ++half) { // eight outputs each
                __m256i of[2];
                KVCACHE_UNROLL for (std::size_t i = 0; i < 2; ++i) {
                    const std::int8_t* bytes = from + four * 64 + half * 32 + i * 16;
                    of[i] = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
                }
                const __m256 a = _mm256_castsi256_ps(of[0]), b = _mm256_castsi256_ps(of[1]);
                store(four * 64 + half * 16, _mm256_shuffle_ps(a, b, 0b10'00'10'00)); // the first pair of each output
                store(four * 64 + 32 + half * 16, _mm256_shuffle_ps(a, b, 0b11'01'11'01));
            }
        }
    }

private:
    // Reorders outputs 0, 1, 4, 5, 2, 3, 6, 7 to ascending order.
    void store(std::size_t at, __m256 pairs) noexcept {
        const __m256i ordered = _mm256_permute4x64_epi64(_mm256_castps_si256(pairs), 0b11'01'10'00);
        _mm256_store_si256(reinterpret_cast<__m256i*>(data + at), ordered);
    }
};

// sum += dot products of pairs of words. The asm keeps the sum in its register, since compilers otherwise add moves.
KVCACHE_INLINE inline __m256i add_words(__m256i sum, __m256i x, __m256i y) noexcept {
    const __m256i products = _mm256_madd_epi16(x, y);
#if defined(__GNUC__)
    asm volatile("vpaddd %1, %0, %0" : "+x"(sum) : "x"(products));
    return sum;
#else
    return _mm256_add_epi32(sum, products);
#endif
}

// Adds the products of Rows packed rows and 16 outputs to `sums`, or sets `sums` to them. rows: (pairs, packed_rows)
// pairs of words, words: (pairs, 16, 2), sums: (Rows, 16). Requires: `pairs` is even.
template <std::size_t Rows>
KVCACHE_NOINLINE inline void word_tile(const word_pair* rows, const std::int16_t* words, std::size_t pairs,
                                       std::int32_t* sums, bool begin) noexcept {
    __m256i own[Rows * 2];
    KVCACHE_UNROLL for (std::size_t i = 0; i < Rows * 2; ++i) own[i] =
        begin ? _mm256_setzero_si256() : _mm256_load_si256(reinterpret_cast<const __m256i*>(sums + i * 8));
    for (std::size_t pair = 0; pair < pairs; pair += 2) {
        KVCACHE_UNROLL for (std::size_t i = 0; i < 2; ++i) {
            __m256i column[2];
            KVCACHE_UNROLL for (std::size_t half = 0; half < 2; ++half) column[half] =
                _mm256_load_si256(reinterpret_cast<const __m256i*>(words + i * 32 + half * 16));
            KVCACHE_UNROLL for (std::size_t r = 0; r < Rows; ++r) {
                std::int32_t pair_of_row;
                std::memcpy(&pair_of_row, rows + i * packed_rows + r, sizeof pair_of_row);
                const __m256i two = _mm256_set1_epi32(pair_of_row);
                KVCACHE_UNROLL for (std::size_t half = 0; half < 2; ++half) own[r * 2 + half] =
                    add_words(own[r * 2 + half], column[half], two);
            }
        }
        rows += 2 * packed_rows, words += 64;
        keep(rows), keep(words);
    }
    KVCACHE_UNROLL for (std::size_t i = 0; i < Rows * 2; ++i)
        _mm256_store_si256(reinterpret_cast<__m256i*>(sums + i * 8), own[i]);
}

#endif

}}} // namespace kvcache::detail
