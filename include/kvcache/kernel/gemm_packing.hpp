// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/memory.hpp>
#include <kvcache/core/platform/machine.hpp>
#include <kvcache/kernel/native.hpp>
#include <kvcache/kernel/packed_matrix.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

/// Sixteen bytes of weights; only their bits are moved.
using four_words = std::uint32_t __attribute__((vector_size(16)));
using eight_words = std::uint16_t __attribute__((vector_size(16)));

/// Interleaves the lower halves of two vectors, and the upper halves.
[[nodiscard]] inline four_words zip_lower(four_words a, four_words b) noexcept {
    return __builtin_shufflevector(a, b, 0, 4, 1, 5);
}
[[nodiscard]] inline four_words zip_upper(four_words a, four_words b) noexcept {
    return __builtin_shufflevector(a, b, 2, 6, 3, 7);
}
[[nodiscard]] inline eight_words zip_lower(eight_words a, eight_words b) noexcept {
    return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
}
[[nodiscard]] inline eight_words zip_upper(eight_words a, eight_words b) noexcept {
    return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}

/// Transposes a square of N vectors of N elements: each round interleaves its first half with its second.
template <class Vector, std::size_t N, std::size_t... Pair>
inline void transpose(std::array<Vector, N>& square, std::index_sequence<Pair...>) noexcept {
    for (std::size_t round = 1; round < N; round *= 2) {
        std::array<Vector, N> zipped;
        ((zipped[2 * Pair] = zip_lower(square[Pair], square[Pair + N / 2]),
          zipped[2 * Pair + 1] = zip_upper(square[Pair], square[Pair + N / 2])),
         ...);
        square = zipped;
    }
}

/// Transposes a square of the weights at `rows` + `offset` bytes, and writes it with `step` elements from one input to
/// the next. (N, N)
template <class Vector, weight_format Weight, std::size_t... Row>
inline void pack_square(const std::byte* const* rows, std::size_t offset, Weight* to, std::size_t step,
                        std::index_sequence<Row...>) noexcept {
    constexpr std::size_t n = sizeof...(Row);
    std::array<Vector, n> square = {};
    ((rows[Row] != nullptr ? void(std::memcpy(&square[Row], rows[Row] + offset, sizeof(Vector))) : void()), ...);
    transpose(square, std::make_index_sequence<n / 2>());
    (std::memcpy(static_cast<void*>(to + Row * step), &square[Row], sizeof(Vector)), ...);
}

} // namespace detail

/// Packs the rows of a strip's outputs. Each row is `inputs` weights in memory order at any alignment; null is a row of
/// zeros. (width, inputs) -> (inputs, width) Requires: width is a multiple of 16. Cost: reads and writes every cache
/// line once.
template <weight_format Weight>
inline void pack_b(std::span<const std::byte* const> rows, std::size_t inputs, Weight* strip) noexcept {
    using vector = std::conditional_t<sizeof(Weight) == 4, detail::four_words, detail::eight_words>;
    const std::size_t width = rows.size();
    constexpr std::size_t side = sizeof(vector) / sizeof(Weight);
    constexpr std::size_t block = 4 * line_bytes / sizeof(Weight); // inputs of each row, before the next rows
    const std::size_t squares = inputs / side * side;
    for (std::size_t begin = 0; begin < inputs; begin += block) {
        const std::size_t end = std::min(begin + block, inputs), whole = std::min(end, squares);
        for (std::size_t row = 0; row < width; row += side) {
            for (std::size_t k = begin; k < whole; k += side)
                detail::pack_square<vector>(&rows[row], k * sizeof(Weight), strip + k * width + row, width,
                                            std::make_index_sequence<side>());
            for (std::size_t k = std::max(begin, whole); k < end; ++k)
                for (std::size_t r = row; r < row + side; ++r) {
                    Weight weight{};
                    if (rows[r] != nullptr)
                        std::memcpy(static_cast<void*>(&weight), rows[r] + k * sizeof(Weight), sizeof(Weight));
                    strip[k * width + r] = weight;
                }
        }
    }
}

namespace detail {

// Rows of a tile among many rows, and the stride of an input in a packed tile of fewer rows. A tile is as wide as a
// strip. With AVX-512 8 x 48 instead of 12 x 32: 11 loads for 24 multiply-adds instead of 14, which matters where two
// hardware threads share a front end.
inline constexpr std::size_t packed_rows = native_lanes == 16 ? 8 : 6;

// Rows in tiles as equal as possible: a short last tile would leave the FMA pipes idle.
struct row_tiles {
    explicit row_tiles(std::size_t all)
        : count((all + packed_rows - 1) / packed_rows), least(all / count), taller(all % count) {}
    [[nodiscard]] std::size_t rows(std::size_t tile) const { return least + (tile < taller ? 1 : 0); }
    [[nodiscard]] std::size_t row(std::size_t tile) const { return least * tile + std::min(tile, taller); }

    std::size_t count, least, taller;
};

using whole_line = std::uint32_t __attribute__((vector_size(64)));
using half_line = std::uint32_t __attribute__((vector_size(32)));

template <class Number>
KVCACHE_INLINE inline void load_halves(const Number* first, const Number* second, whole_line& to) noexcept {
    half_line lower, upper;
    std::memcpy(&lower, first, sizeof lower);
    std::memcpy(&upper, second, sizeof upper);
    to = __builtin_shufflevector(lower, upper, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

// Interleaves two vectors within each quarter: single elements, or pairs of them.
KVCACHE_INLINE inline void zip_quarters(const whole_line& a, const whole_line& b, whole_line& lower,
                                        whole_line& upper) noexcept {
    lower = __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
    upper = __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}
KVCACHE_INLINE inline void pair_quarters(const whole_line& a, const whole_line& b, whole_line& lower,
                                         whole_line& upper) noexcept {
    lower = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
    upper = __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}

// Writes the even quarters of two vectors, and the odd ones four inputs further.
template <class Number>
KVCACHE_INLINE inline void store_quarters(const whole_line& a, const whole_line& b, Number* packed) noexcept {
    const whole_line even = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    const whole_line odd = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    std::memcpy(static_cast<void*>(packed), &even, sizeof even);
    std::memcpy(static_cast<void*>(packed + 4 * 8), &odd, sizeof odd);
}

// Transposes eight inputs from `offset` on of 8 rows, in vectors of two half rows each. (8, 8)
template <class Number>
KVCACHE_INLINE inline void pack_inputs(const std::array<const Number*, 8>& rows, std::size_t offset,
                                       Number* packed) noexcept {
    whole_line row[4], zipped[4], column[4];
    KVCACHE_UNROLL for (std::size_t r = 0; r < 4; ++r) load_halves(rows[r] + offset, rows[r + 4] + offset, row[r]);
    zip_quarters(row[0], row[1], zipped[0], zipped[1]);
    zip_quarters(row[2], row[3], zipped[2], zipped[3]);
    pair_quarters(zipped[0], zipped[2], column[0], column[1]); // inputs 0 and 4 of all rows; then 1 and 5
    pair_quarters(zipped[1], zipped[3], column[2], column[3]);
    store_quarters(column[0], column[1], packed);
    store_quarters(column[2], column[3], packed + 2 * 8);
}

// The same for 6 rows: a square of the first four and pairs of the other two, in vectors of a quarter row. (6, 8) ->
// (8, 6)
template <class Number>
KVCACHE_INLINE inline void pack_inputs(const std::array<const Number*, 6>& rows, std::size_t offset,
                                       Number* packed) noexcept {
    KVCACHE_UNROLL for (std::size_t half = 0; half < 2; ++half) {
        std::array<four_words, 6> row;
        KVCACHE_UNROLL for (std::size_t r = 0; r < 6; ++r)
            std::memcpy(&row[r], rows[r] + offset + half * 4, sizeof row[r]);
        std::array<four_words, 4> square = {row[0], row[1], row[2], row[3]};
        transpose(square, std::make_index_sequence<2>());
        const four_words pairs[] = {zip_lower(row[4], row[5]), zip_upper(row[4], row[5])};
        KVCACHE_UNROLL for (std::size_t k = 0; k < 4; ++k) {
            Number* to = packed + (half * 4 + k) * 6;
            std::memcpy(static_cast<void*>(to), &square[k], sizeof square[k]);
            std::memcpy(static_cast<void*>(to + 4), reinterpret_cast<const std::uint32_t*>(&pairs[k / 2]) + k % 2 * 2,
                        2 * sizeof *to);
        }
    }
}

// Packs `rows` rows (at most packed_rows) for a tile: inputs ascending, the values of all rows contiguous for each
// input. Missing rows have undefined values. (rows, inputs) -> (inputs, packed_rows)
template <class Number>
inline void pack_a(const Number* x, std::size_t x_stride, std::size_t rows, std::size_t inputs, Number* packed) {
    static_assert(sizeof(Number) == 4);
    std::array<const Number*, packed_rows> row;
    for (std::size_t r = 0; r < packed_rows; ++r)
        row[r] = x + std::min(r, rows - 1) * x_stride;
    std::size_t k = 0;
    for (; k + 16 <= inputs; k += 16) {
        pack_inputs(row, k, packed + k * packed_rows);
        pack_inputs(row, k + 8, packed + (k + 8) * packed_rows);
    }
    if (k + 8 <= inputs) {
        pack_inputs(row, k, packed + k * packed_rows);
        k += 8;
    }
    for (; k < inputs; ++k)
        for (std::size_t r = 0; r < packed_rows; ++r)
            packed[k * packed_rows + r] = row[r][k];
}

} // namespace detail

}} // namespace kvcache
