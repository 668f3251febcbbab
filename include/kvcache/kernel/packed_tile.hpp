// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/prefetch.hpp>
#include <kvcache/kernel/simd.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace kvcache {

namespace detail {

// Numbers of an input that a tile of packed rows takes, whether it has so many rows or fewer.
inline constexpr std::size_t packed_rows = 8;

using whole_line = std::uint32_t __attribute__((vector_size(64)));
using half_line = std::uint32_t __attribute__((vector_size(32)));

KVCACHE_INLINE inline void load_halves(const float* first, const float* second, whole_line& to) noexcept {
    half_line lower, upper;
    std::memcpy(&lower, first, sizeof lower);
    std::memcpy(&upper, second, sizeof upper);
    to = __builtin_shufflevector(lower, upper, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

// Mixes two vectors, quarter by quarter: their numbers in turn, or pairs of them.
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
KVCACHE_INLINE inline void store_quarters(const whole_line& a, const whole_line& b, float* packed) noexcept {
    const whole_line even = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    const whole_line odd = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    std::memcpy(packed, &even, sizeof even);
    std::memcpy(packed + 4 * packed_rows, &odd, sizeof odd);
}

// Transposes a square of the numbers from `offset` on of 8 rows, in vectors of two half rows each. (8, 8)
KVCACHE_INLINE inline void pack_eight(const float* const* rows, std::size_t offset, float* packed) noexcept {
    whole_line row[4], zipped[4], column[4];
    unrolled<4>([&](auto r) KVCACHE_INLINE { load_halves(rows[r] + offset, rows[r + 4] + offset, row[r]); });
    zip_quarters(row[0], row[1], zipped[0], zipped[1]);
    zip_quarters(row[2], row[3], zipped[2], zipped[3]);
    pair_quarters(zipped[0], zipped[2], column[0], column[1]); // inputs 0 and 4, each of all rows; then 1 and 5
    pair_quarters(zipped[1], zipped[3], column[2], column[3]);
    store_quarters(column[0], column[1], packed);
    store_quarters(column[2], column[3], packed + 2 * packed_rows);
}

// Packs so many rows (8 at most) for a tile: the inputs ascending, of each the rows' numbers side by side. What stands
// for rows that are not there may be any number. (rows, inputs) -> (inputs, 8)
inline void pack_rows(const float* x, std::size_t x_stride, std::size_t rows, std::size_t inputs, float* packed) {
    const float* row[packed_rows];
    for (std::size_t r = 0; r < packed_rows; ++r)
        row[r] = x + std::min(r, rows - 1) * x_stride;
    std::size_t k = 0;
    for (; k + 16 <= inputs; k += 16) {
        pack_eight(row, k, packed + k * packed_rows);
        pack_eight(row, k + 8, packed + (k + 8) * packed_rows);
    }
    if (k + 8 <= inputs) {
        pack_eight(row, k, packed + k * packed_rows);
        k += 8;
    }
    for (; k < inputs; ++k)
        for (std::size_t r = 0; r < packed_rows; ++r)
            packed[k * packed_rows + r] = row[r][k];
}

// Bytes that come soon, in runs with gaps between them: every four inputs a tile of packed rows asks so many times for
// the line at `at`, where a run begins, then goes on by `step`.
struct bytes_ahead {
    const void* base = nullptr;
    std::size_t at = 0;
    std::size_t step = 0;
    std::size_t times = 0;
    std::size_t run = std::numeric_limits<std::size_t>::max() / 2;
    std::size_t gap = 0;
};

// A product_tile() of packed rows and one strip of Panels panels, for vectors of 16 numbers. The weights come from the
// second cache and are asked for four inputs ahead. What is not float32 is widened on the way and written to `wide`,
// from which other rows read it then. It stays a function of its own: among others' code GCC finds no room for its
// registers. Requires: `inputs` is a multiple of 4.
template <std::size_t Rows, std::size_t Panels, weight_format Weight>
[[gnu::noinline]] inline void packed_tile(const float* x, const Weight* w, [[maybe_unused]] float* wide,
                                          std::size_t inputs, float* y, std::size_t y_stride, std::size_t outputs,
                                          bool begin, bytes_ahead ahead) {
    native_floats sums[Rows * Panels];
    const bool whole = outputs >= Panels * 16; // all that meets here is asked for once, not at each vector
    const auto each_sum = [&](auto body) KVCACHE_INLINE {
        float* row = y;
        unrolled<Rows>([&](auto r) KVCACHE_INLINE {
            if constexpr (r > 0)
                row += y_stride;
            keep(row); // or GCC computes all addresses first, and has no registers for them
            unrolled<Panels>([&](auto p) KVCACHE_INLINE { body(sums[r * Panels + p], row + p * 16, p * 16); });
        });
    };
    if (begin)
        each_sum([](native_floats& sum, const float*, std::size_t) KVCACHE_INLINE { sum = native_floats(0.0f); });
    else if (whole)
        each_sum([](native_floats& sum, const float* at, std::size_t)
                     KVCACHE_INLINE { sum = native_floats::load_unaligned(at); });
    else
        each_sum([&](native_floats& sum, const float* at, std::size_t first) KVCACHE_INLINE {
            sum = first < outputs ? f32x16::load_up_to(at, outputs - first).part[0] : native_floats(0.0f);
        });
    const float* soon = y + Rows * y_stride; // those of the next tile
    unrolled<Rows>([&](auto) KVCACHE_INLINE {
        unrolled<Panels>([&](auto p) KVCACHE_INLINE { prefetch_to_write(soon, p * 16); });
        soon += y_stride;
        keep(soon);
    });
    std::size_t end = ahead.at + ahead.run;
    for (std::size_t k = 0; k < inputs; k += 4) {
        for (std::size_t n = 0; n < ahead.times; ++n, ahead.at += ahead.step) {
            if (ahead.at >= end) {
                ahead.at += ahead.gap;
                end += ahead.gap + ahead.run;
            }
            prefetch_soon(static_cast<const std::byte*>(ahead.base), ahead.at);
        }
        unrolled<4>([&](auto i) KVCACHE_INLINE {
            f32x16 columns[Panels];
            unrolled<Panels>([&](auto p) KVCACHE_INLINE {
                columns[p] = f32x16::load(w + (i * Panels + p) * 16);
                if constexpr (!std::same_as<Weight, float>)
                    columns[p].store(wide + (i * Panels + p) * 16);
            });
            unrolled<Rows>([&](auto r) KVCACHE_INLINE {
                const native_floats a(x[i * packed_rows + r]);
                if constexpr (r < Panels)
                    prefetch(w, ((i + 4) * Panels + r) * 16);
                unrolled<Panels>([&](auto p)
                                     KVCACHE_INLINE { accumulate(sums[r * Panels + p], a, columns[p].part[0]); });
            });
        });
        x += 4 * packed_rows, w += 4 * Panels * 16;
        keep(x), keep(w);
        if constexpr (!std::same_as<Weight, float>) {
            wide += 4 * Panels * 16;
            keep(wide);
        }
    }
    if (whole)
        each_sum([](const native_floats& sum, float* at, std::size_t) KVCACHE_INLINE { sum.store_unaligned(at); });
    else
        each_sum([&](const native_floats& sum, float* at, std::size_t first) KVCACHE_INLINE {
            if (first < outputs)
                f32x16{{sum}}.store_up_to(at, outputs - first);
        });
}

} // namespace detail

} // namespace kvcache
