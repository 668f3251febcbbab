// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/intrinsics.hpp>
#include <kvcache/core/prefetch.hpp>
#include <kvcache/core/zeroed_memory.hpp>
#include <kvcache/kernel/native.hpp>
#include <kvcache/kernel/pack_a.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

/// Int8 GEMM of many rows on machines without a byte dot product but with one of pairs of int16: weights are widened
/// once for all rows, and rows are packed.
namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

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
[[gnu::noinline]] inline void word_tile(const word_pair* rows, const std::int16_t* words, std::size_t pairs,
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
