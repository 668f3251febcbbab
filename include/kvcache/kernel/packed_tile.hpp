// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/prefetch.hpp>
#include <kvcache/kernel/pack_strip.hpp>
#include <kvcache/kernel/simd.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <utility>

namespace kvcache {

namespace detail {

// Numbers of an input that a tile of packed rows takes, whether it has so many rows or fewer.
inline constexpr std::size_t packed_rows = 8;

// Transposes a square of the numbers from `offset` on of 8 rows, by squares of four. (8, 8)
inline void pack_eight(const float* const* rows, std::size_t offset, float* packed) {
    for (std::size_t half = 0; half < 2; ++half)
        for (std::size_t k = 0; k < 8; k += 4) {
            std::array<four_words, 4> square;
            for (std::size_t r = 0; r < 4; ++r)
                std::memcpy(&square[r], rows[half * 4 + r] + offset + k, sizeof square[r]);
            transpose(square, std::make_index_sequence<2>());
            for (std::size_t i = 0; i < 4; ++i)
                std::memcpy(packed + (k + i) * packed_rows + half * 4, &square[i], sizeof square[i]);
        }
}

// Packs so many rows (8 at most) for a tile: the inputs ascending, of each the rows' numbers side by side. What stands
// for rows that are not there may be any number. (rows, inputs) -> (inputs, 8)
inline void pack_rows(const float* x, std::size_t x_stride, std::size_t rows, std::size_t inputs, float* packed) {
    const float* row[packed_rows];
    for (std::size_t r = 0; r < packed_rows; ++r)
        row[r] = x + std::min(r, rows - 1) * x_stride;
    std::size_t k = 0;
    for (; k + 8 <= inputs; k += 8)
        pack_eight(row, k, packed + k * packed_rows);
    for (; k < inputs; ++k)
        for (std::size_t r = 0; r < packed_rows; ++r)
            packed[k * packed_rows + r] = row[r][k];
}

// Bytes that come soon: every four inputs a tile of packed rows asks so many times for the line at `at`, then goes on
// by `step`.
struct bytes_ahead {
    const void* base = nullptr;
    std::size_t at = 0;
    std::size_t step = 0;
    std::size_t times = 0;
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
    for (std::size_t k = 0; k < inputs; k += 4) {
        for (std::size_t n = 0; n < ahead.times; ++n, ahead.at += ahead.step)
            prefetch_soon(static_cast<const std::byte*>(ahead.base), ahead.at);
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
