// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/zeroed_memory.hpp>
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

}} // namespace kvcache
