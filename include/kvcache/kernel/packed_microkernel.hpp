// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/prefetch.hpp>
#include <kvcache/kernel/pack_a.hpp>
#include <kvcache/kernel/simd.hpp>
#include <kvcache/kernel/tile_sums.hpp>

#include <concepts>
#include <cstddef>
#include <limits>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

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
// More than six parameters: it is called for each register tile; the pointers and strides that its loops use are passed
// in registers, and a struct of them would be passed in memory.
template <std::size_t Rows, std::size_t Panels, weight_format Weight>
[[gnu::noinline]] inline void packed_microkernel(const float* x, const Weight* w, [[maybe_unused]] float* wide,
                                                 std::size_t inputs, float* y, std::size_t y_stride,
                                                 std::size_t outputs, bool begin, bytes_ahead ahead) {
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

} // namespace detail

}} // namespace kvcache
