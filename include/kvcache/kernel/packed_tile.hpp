// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/prefetch.hpp>
#include <kvcache/kernel/pack_rows.hpp>
#include <kvcache/kernel/simd.hpp>
#include <kvcache/kernel/tile_sums.hpp>

#include <concepts>
#include <cstddef>
#include <limits>

namespace kvcache::inline KVCACHE_ABI {

namespace detail {

// Inputs that a tile runs before it asks for what comes soon: fewer where its multiply-adds are twice as wide.
inline constexpr std::size_t asked_every = native_lanes == 16 ? 4 : 16;

// Bytes that come soon, in runs with gaps between them: every `asked_every` inputs a tile of packed rows asks so many
// times for the line at `at`, where a run begins, then goes on by `step`.
struct bytes_ahead {
    const void* base = nullptr;
    std::size_t at = 0;
    std::size_t step = 0;
    std::size_t times = 0;
    std::size_t run = std::numeric_limits<std::size_t>::max() / 2;
    std::size_t gap = 0;
};

// A product_tile() of packed rows and one strip of Panels panels. The weights come from the second cache; with
// AVX-512 they are asked for four inputs ahead. What is not float32 is widened on the way and written to `wide`, from
// which other rows read it then. It stays a function of its own: among others' code GCC finds no room for its
// registers. Requires: `inputs` is a multiple of 4.
template <std::size_t Rows, std::size_t Panels, weight_format Weight>
[[gnu::noinline]] inline void packed_tile(const float* x, const Weight* w, [[maybe_unused]] float* wide,
                                          std::size_t inputs, float* y, std::size_t y_stride, std::size_t outputs,
                                          bool begin, bytes_ahead ahead) {
    tile_sums<Rows, Panels> sums;
    begin_sums<Rows, Panels>(sums, y, y_stride, outputs, begin);
    const float* soon = y + Rows * y_stride; // those of the next tile
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

} // namespace kvcache
