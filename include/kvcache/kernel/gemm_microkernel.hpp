// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/number_format.hpp>
#include <kvcache/core/platform/machine.hpp>
#include <kvcache/kernel/gemm_packing.hpp>
#include <kvcache/kernel/native.hpp>
#include <kvcache/kernel/packed_matrix.hpp>
#include <kvcache/kernel/simd.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <limits>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Accumulators of a tile. (rows, panels * 16), flat: GCC 12 does not keep nested arrays in registers.
template <std::size_t Rows, std::size_t Panels>
using tile_sums = native_floats[Rows * Panels * native_parts];

// A separate function for the one tile of a matrix with fewer outputs than its vectors.
KVCACHE_NOINLINE inline void copy_rows(const float* from, std::size_t from_stride, float* to, std::size_t to_stride,
                                       std::size_t rows, std::size_t count) {
    for (std::size_t r = 0; r < rows; ++r)
        std::memcpy(to + r * to_stride, from + r * from_stride, count * sizeof(float));
}

/// Loads accumulators from rows of `stride` floats.
template <std::size_t Rows, std::size_t Panels>
KVCACHE_INLINE inline void load_whole(tile_sums<Rows, Panels>& sums, const float* from, std::size_t stride) {
    KVCACHE_UNROLL for (std::size_t r = 0; r < Rows; ++r) {
        KVCACHE_UNROLL for (std::size_t v = 0; v < Panels * native_parts; ++v) sums[r * Panels * native_parts + v] =
            native_floats::load_unaligned(from + v * native_lanes);
        from += stride;
        keep(from); // otherwise GCC computes all addresses first and runs out of registers
    }
}

/// Stores accumulators to rows of `stride` floats.
template <std::size_t Rows, std::size_t Panels>
KVCACHE_INLINE inline void store_whole(const tile_sums<Rows, Panels>& sums, float* to, std::size_t stride) {
    KVCACHE_UNROLL for (std::size_t r = 0; r < Rows; ++r) {
        KVCACHE_UNROLL for (std::size_t v = 0; v < Panels * native_parts; ++v) sums[r * Panels * native_parts + v]
            .store_unaligned(to + v * native_lanes);
        to += stride;
        keep(to);
    }
}

/// Sets accumulators to zero, or loads them from `y`, whose rows may end before the last panel does.
template <std::size_t Rows, std::size_t Panels>
KVCACHE_INLINE inline void begin_sums(tile_sums<Rows, Panels>& sums, const float* y, std::size_t stride,
                                      std::size_t outputs, bool from_zero) {
    if (from_zero) {
        KVCACHE_UNROLL for (std::size_t i = 0; i < Rows * Panels * native_parts; ++i) sums[i] = native_floats(0.0f);
    } else if (outputs >= Panels * 16) {
        load_whole<Rows, Panels>(sums, y, stride);
    } else {
        alignas(64) float whole[Rows * Panels * 16] = {};
        copy_rows(y, stride, whole, Panels * 16, Rows, outputs);
        load_whole<Rows, Panels>(sums, whole, Panels * 16);
    }
}

/// Stores accumulators to `y`, whose rows may end before the last panel does.
template <std::size_t Rows, std::size_t Panels>
KVCACHE_INLINE inline void end_sums(const tile_sums<Rows, Panels>& sums, float* y, std::size_t stride,
                                    std::size_t outputs) {
    if (outputs >= Panels * 16) {
        store_whole<Rows, Panels>(sums, y, stride);
    } else {
        alignas(64) float whole[Rows * Panels * 16];
        store_whole<Rows, Panels>(sums, whole, Panels * 16);
        copy_rows(whole, Panels * 16, y, stride, Rows, outputs);
    }
}

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
template <std::size_t Rows, std::size_t Strips, std::size_t Width, weight_format Weight>
// Called for each register tile with other pointers, which a struct would pass in memory.
// NOLINTNEXTLINE(readability-function-size)
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

// Inputs between two prefetch points of a tile: fewer where multiply-adds are twice as wide.
inline constexpr std::size_t asked_every = native_lanes == 16 ? 4 : 16;

// Bytes to prefetch, in runs with gaps between them. Every `asked_every` inputs, a tile of packed rows issues `times`
// prefetches at `at`, which advances by `step`.
struct bytes_ahead {
    const void* base = nullptr;
    std::size_t at = 0;
    std::size_t step = 0;
    std::size_t times = 0;
    std::size_t run = std::numeric_limits<std::size_t>::max() / 2;
    std::size_t gap = 0;
};

// The gemm_microkernel() for packed rows and one strip of Panels panels. The weights come from the L2 cache; with
// AVX-512 they are prefetched four inputs ahead. Weights other than float32 are widened and also written to `wide`,
// from which later rows read them. Not inlined: inside a larger function GCC runs out of registers. Requires: `inputs`
// is a multiple of 4.
template <std::size_t Rows, std::size_t Panels, weight_format Weight>
// Called for each register tile: what its loops use is passed in registers, and a struct would be passed in memory.
// NOLINTNEXTLINE(readability-function-size)
KVCACHE_NOINLINE inline void packed_microkernel(const float* x, const Weight* w, [[maybe_unused]] float* wide,
                                                std::size_t inputs, float* y, std::size_t y_stride, std::size_t outputs,
                                                bool begin, bytes_ahead ahead) {
    tile_sums<Rows, Panels> sums;
    begin_sums<Rows, Panels>(sums, y, y_stride, outputs, begin);
    const float* soon = y + Rows * y_stride; // outputs of the next tile
    KVCACHE_UNROLL for (std::size_t r = 0; r < Rows; ++r) {
        KVCACHE_UNROLL for (std::size_t p = 0; p < Panels; ++p) prefetch_to_write(soon, p * 16);
        soon += y_stride;
        keep(soon);
    }
    std::size_t end = ahead.at + ahead.run;
    for (std::size_t k = 0; k < inputs; k += 4) {
        if (k % asked_every == 0)
            for (std::size_t n = 0; n < ahead.times; ++n, ahead.at += ahead.step) {
                if (ahead.at >= end) {
                    ahead.at += ahead.gap;
                    end += ahead.gap + ahead.run;
                }
                prefetch_soon(static_cast<const std::byte*>(ahead.base), ahead.at);
            }
        KVCACHE_UNROLL for (std::size_t i = 0; i < 4; ++i) {
            f32x16 columns[Panels];
            KVCACHE_UNROLL for (std::size_t p = 0; p < Panels; ++p) {
                columns[p] = f32x16::load(w + (i * Panels + p) * 16);
                if constexpr (!std::same_as<Weight, float>)
                    columns[p].store(wide + (i * Panels + p) * 16);
            }
            KVCACHE_UNROLL for (std::size_t r = 0; r < Rows; ++r) {
                const native_floats a(x[i * packed_rows + r]);
                if (native_lanes == 16 && r < Panels)
                    prefetch(w, ((i + 4) * Panels + r) * 16);
                KVCACHE_UNROLL for (std::size_t v = 0; v < Panels * native_parts; ++v) accumulate(
                    sums[r * Panels * native_parts + v], a, columns[v / native_parts].part[v % native_parts]);
            }
        }
        x += 4 * packed_rows, w += 4 * Panels * 16;
        keep(x), keep(w);
        if constexpr (!std::same_as<Weight, float>) {
            wide += 4 * Panels * 16;
            keep(wide);
        }
    }
    end_sums<Rows, Panels>(sums, y, y_stride, outputs);
}

}}} // namespace kvcache::detail
