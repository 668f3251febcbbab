// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/number_format.hpp>
#include <kvcache/core/prefetch.hpp>
#include <kvcache/kernel/packed_matrix.hpp>
#include <kvcache/kernel/simd.hpp>
#include <kvcache/kernel/tile_sums.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

// Register blocking: a tile of `rows` x `vectors` accumulators, two columns and a broadcast.
// The maximum number of rows that run as a single tile.
inline constexpr std::size_t tallest_tile = native_lanes == 16 ? 9 : 6;

// The minimum number of rows of a tile when more rows are split evenly into several tiles.
inline constexpr std::size_t fewest_rows = (tallest_tile + 1) / 2;

// Strips processed together for few rows: enough chains to fill the FMA pipes, few enough to stay in registers.
[[nodiscard]] constexpr std::size_t strips_at_once(std::size_t rows) {
    if (native_lanes == 16)
        return rows == 1 ? 3 : rows <= 4 ? 2 : 1;
    if (rows == 1)
        return native_lanes == 8 ? 6 : 4;
    return rows == 2 ? 3 : rows == 3 ? 2 : 1;
}

// Inputs of a block, so that its weights stay in the L1 and L2 caches, and rows of a block, so that their slice stays
// in the L2 cache. More rows where multiply-adds are twice as fast, since each block reads all weights.
inline constexpr std::size_t block_inputs = 640;
inline constexpr std::size_t block_rows = native_lanes == 16 ? 128 : 132;

// Prefetch distance for weights with few rows on AVX-512, in bytes of a strip: about the memory latency.
inline constexpr std::size_t far_ahead = 1536;

// Computes a tile of Rows x Strips * Width * 16 outputs, each its own chain of fused multiply-adds over ascending
// inputs, started at zero or continued. The weights of strip s, Width panels wide, begin at w + s * strip. The tile
// decides only which chains run together, never the order within one.
// More than six parameters: it is called for each register tile, with other pointers each time; a struct of them is
// passed in memory, where each call would write and read it.
template <std::size_t Rows, std::size_t Strips, std::size_t Width, weight_format Weight>
inline void gemm_microkernel(const float* x, std::size_t x_stride, const Weight* w, std::size_t strip,
                             std::size_t inputs, float* y, std::size_t y_stride, std::size_t outputs, bool begin) {
    constexpr std::size_t panels = Strips * Width;
    // Columns of weights kept in registers across all rows. Usually one; more where GCC would otherwise keep so many
    // broadcasts that the 32 registers of AVX-512 overflow.
    constexpr std::size_t columns_held = native_lanes == 16 && Rows * panels + Rows + 1 > 32 ? panels : 1;
    tile_sums<Rows, panels> sums;
    begin_sums<Rows, panels>(sums, y, y_stride, outputs, begin);
    for (std::size_t r = 0; r < Rows; ++r) // outputs of the next tile
        prefetch_to_write(y, (Rows + r) * y_stride);
    const auto step = [&](std::size_t k) KVCACHE_INLINE {
        KVCACHE_UNROLL for (std::size_t group = 0; group < panels / columns_held; ++group) {
            native_floats columns[columns_held * native_parts];
            KVCACHE_UNROLL for (std::size_t p = 0; p < columns_held; ++p) {
                const std::size_t panel = group * columns_held + p;
                f32x16 column = f32x16::load(w + panel / Width * strip + (k * Width + panel % Width) * 16);
                KVCACHE_UNROLL for (std::size_t part = 0; part < native_parts; ++part) {
                    if constexpr (Rows > 1)
                        keep(column.part[part]);
                    columns[p * native_parts + part] = column.part[part];
                }
            }
            KVCACHE_UNROLL for (std::size_t r = 0; r < Rows; ++r) {
                const native_floats a(x[r * x_stride + k]);
                KVCACHE_UNROLL for (std::size_t c = 0; c < columns_held * native_parts; ++c) {
                    native_floats& sum = sums[(r * panels + group * columns_held) * native_parts + c];
                    sum = fused(a, columns[c], sum);
                }
            }
        }
    };
    std::size_t k = 0;
    // A single row of float32 is not faster with prefetching.
    if constexpr (native_lanes == 16 && (Rows > 1 || !std::same_as<Weight, float>))
        for (; k + 2 <= inputs; k += 2) {
            constexpr std::size_t line = line_bytes / sizeof(Weight), lines = 2 * Width * 16 / line;
            KVCACHE_UNROLL for (std::size_t i = 0; i < Strips * lines; ++i)
                prefetch_soon(w + i / lines * strip, k * Width * 16 + far_ahead / sizeof(Weight) + i % lines * line);
            step(k);
            step(k + 1);
        }
    for (; k < inputs; ++k)
        step(k);
    end_sums<Rows, panels>(sums, y, y_stride, outputs);
}

// Calls body<N>() with N = n, for n in [Least, Most].
template <std::size_t Most, std::size_t Least = 1, class Body>
inline void with_rows(std::size_t n, Body body) {
    if constexpr (Most > Least)
        if (n < Most)
            return with_rows<Most - 1, Least>(n, body);
    body.template operator()<Most>();
}

} // namespace detail

}} // namespace kvcache
