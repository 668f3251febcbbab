// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/prefetch.hpp>
#include <kvcache/kernel/number_format.hpp>
#include <kvcache/kernel/pack_panel.hpp>
#include <kvcache/kernel/simd.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

namespace kvcache {

namespace detail {

// How the machine's registers are used: a tile of `rows` x `vectors` accumulators, two columns and a broadcast.
// The most rows that run as one tile, with no others behind them.
inline constexpr std::size_t tallest_tile = native_lanes == 16 ? 12 : 6;

// Rows and panels of a tile among many rows. With AVX-512 8 x 3, not 12 x 2: it takes 11 loads for 24 multiply-adds
// where that takes 14, and a core that shares its front end with a neighbour has not the time for more.
inline constexpr std::size_t tile_rows = native_lanes == 16 ? 8 : tallest_tile;
inline constexpr std::size_t tile_panels = native_lanes == 16 ? 3 : 1;

// Panels of 16 outputs that so few rows run side by side: enough chains to fill the pipes, few enough to stay in
// registers.
[[nodiscard]] constexpr std::size_t panels_at_once(std::size_t rows) {
    if (native_lanes == 16)
        return rows == 1 ? 8 : rows <= 5 ? 4 : rows <= 8 ? 3 : 2;
    if (rows == 1)
        return native_lanes == 8 ? 6 : 4;
    return rows == 2 ? 3 : 1;
}

// Inputs that run before the next outputs do, so that their weights come from the first two caches, and rows that do,
// so that their slice stays in the second: more where multiply-adds are twice as fast, as each block reads all weights.
inline constexpr std::size_t block_inputs = 640;
inline constexpr std::size_t block_rows = native_lanes == 16 ? 192 : 96;

// Rows from which on a block of them is packed first, where vectors have 16 numbers.
inline constexpr std::size_t worth_packing = 32;

// Weights that come soon, fetched meanwhile: so many lines of each of a tile's panels while it runs.
struct weights_ahead {
    const std::byte* base = nullptr;
    std::size_t at = 0;    // bytes from there on
    std::size_t panel = 0; // bytes from one panel to the next
    std::size_t lines = 0;
};

// A tile of Rows x Panels * 16 outputs, each its own chain of fused multiply-adds over ascending inputs, begun at zero
// or gone on with. Panel p's weights lie at w + p * panel. The tile decides only which chains run side by side, never
// the order inside one.
template <std::size_t Rows, std::size_t Panels, weight_format Weight>
inline void product_tile(const float* x, std::size_t x_stride, const Weight* w, std::size_t panel, std::size_t inputs,
                         float* y, std::size_t y_stride, std::size_t outputs, bool begin,
                         const weights_ahead& ahead = {}) {
    // Columns of weights in registers while all rows pass: one, but where GCC would then keep so many broadcasts for
    // the next that the 32 registers of AVX-512 overflow.
    constexpr std::size_t columns_held = native_lanes == 16 && Rows * Panels + Rows + 1 > 32 ? Panels : 1;
    native_floats sums[Rows * Panels * native_parts]; // flat: GCC 12 keeps no nested array in registers
    unrolled<Rows * Panels>([&](auto i) KVCACHE_INLINE {
        const std::size_t v = i % Panels * 16;
        f32x16 sum = f32x16::zero();
        if (!begin && v < outputs)
            sum = f32x16::load_up_to(y + i / Panels * y_stride + v, outputs - v);
        unrolled<native_parts>([&](auto part) KVCACHE_INLINE { sums[i * native_parts + part] = sum.part[part]; });
    });
    for (std::size_t r = 0; r < Rows; ++r) // those of the next tile
        prefetch_to_write(y, (Rows + r) * y_stride);
    const auto step = [&](std::size_t k) KVCACHE_INLINE {
        unrolled<Panels / columns_held>([&](auto group) KVCACHE_INLINE {
            native_floats columns[columns_held * native_parts];
            unrolled<columns_held>([&](auto p) KVCACHE_INLINE {
                f32x16 column = f32x16::load(w + (group * columns_held + p) * panel + k * 16);
                unrolled<native_parts>([&](auto part) KVCACHE_INLINE {
                    if constexpr (Rows > 1)
                        keep(column.part[part]);
                    columns[p * native_parts + part] = column.part[part];
                });
            });
            unrolled<Rows>([&](auto r) KVCACHE_INLINE {
                const native_floats a(x[r * x_stride + k]);
                unrolled<columns_held * native_parts>([&](auto c) KVCACHE_INLINE {
                    native_floats& sum = sums[(r * Panels + group * columns_held) * native_parts + c];
                    sum = fused(a, columns[c], sum);
                });
            });
        });
    };
    std::size_t k = 0;
    if constexpr (native_lanes == 16) { // flat: a loop of 16 inside costs a misprediction in 16 inputs
        for (; k < ahead.lines; ++k) {
            for (std::size_t p = 0; p < Panels; ++p)
                prefetch_soon(ahead.base, ahead.at + p * ahead.panel + k * line_bytes);
            step(k);
        }
    } else {
        const std::size_t lines = inputs < 16 ? 0 : ahead.lines / (inputs / 16); // while 16 inputs run
        for (; k + 16 <= inputs; k += 16) {
            if constexpr (Rows > 3)
                for (std::size_t r = 0; r < Rows; ++r)
                    prefetch(x, (Rows + r) * x_stride + k);
            for (std::size_t line = 0; line < lines; ++line)
                for (std::size_t p = 0; p < Panels; ++p)
                    prefetch_soon(ahead.base, ahead.at + p * ahead.panel + (k / 16 * lines + line) * line_bytes);
            for (std::size_t i = 0; i < 16; ++i)
                step(k + i);
        }
    }
    for (; k < inputs; ++k)
        step(k);
    unrolled<Rows * Panels>([&](auto i) KVCACHE_INLINE {
        const std::size_t v = i % Panels * 16;
        f32x16 sum;
        unrolled<native_parts>([&](auto part) KVCACHE_INLINE { sum.part[part] = sums[i * native_parts + part]; });
        if (v < outputs)
            sum.store_up_to(y + i / Panels * y_stride + v, outputs - v);
    });
}

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

// Bytes that come soon: a tile of packed rows asks for the line at `at` every four inputs, then goes on by `step`.
struct bytes_ahead {
    const void* base = nullptr;
    std::size_t at = 0;
    std::size_t step = 0;
};

// A product_tile() of packed rows and wide weights, for vectors of 16 numbers. Every fourth row is broadcast by the
// multiply-adds themselves: fewer instructions, yet not so many loads that they take longer. Requires: `inputs` is a
// multiple of 4.
template <std::size_t Rows, std::size_t Panels>
inline void packed_tile(const float* x, const float* w, std::size_t panel, std::size_t inputs, float* y,
                        std::size_t y_stride, std::size_t outputs, bool begin, bytes_ahead ahead) {
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
        prefetch_soon(static_cast<const std::byte*>(ahead.base), ahead.at);
        ahead.at += ahead.step;
        unrolled<4>([&](auto i) KVCACHE_INLINE {
            native_floats columns[Panels];
            unrolled<Panels>(
                [&](auto p) KVCACHE_INLINE { columns[p] = native_floats::load_unaligned(w + p * panel + i * 16); });
            unrolled<Rows>([&](auto r) KVCACHE_INLINE {
                const float* number = x + i * packed_rows + r;
                const native_floats a(*number);
                unrolled<Panels>([&](auto p) KVCACHE_INLINE {
                    if constexpr (r % 4 == 3)
                        accumulate(sums[r * Panels + p], *number, columns[p]);
                    else
                        accumulate(sums[r * Panels + p], a, columns[p]);
                });
            });
        });
        x += 4 * packed_rows, w += 4 * 16;
        keep(x), keep(w);
    }
    if (whole)
        each_sum([](const native_floats& sum, float* at, std::size_t) KVCACHE_INLINE { sum.store_unaligned(at); });
    else
        each_sum([&](const native_floats& sum, float* at, std::size_t first) KVCACHE_INLINE {
            if (first < outputs)
                f32x16{{sum}}.store_up_to(at, outputs - first);
        });
}

// Calls body<N>() for the N in [1, Most] that `n` is.
template <std::size_t Most, class Body>
inline void with_rows(std::size_t n, Body body) {
    if constexpr (Most > 1)
        if (n < Most)
            return with_rows<Most - 1>(n, body);
    body.template operator()<Most>();
}

} // namespace detail

} // namespace kvcache
