// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/kernel/packed_matrix.hpp>
#include <kvcache/kernel/simd.hpp>
#include <kvcache/kernel/team.hpp>

#include <algorithm>
#include <cstddef>

namespace kvcache {

/// Rows of activations with a fixed distance. (rows, columns)
struct rows_in {
    const float* data = nullptr;
    std::size_t rows = 0;
    std::size_t stride = 0; ///< Numbers from one row to the next.
};
struct rows_out {
    float* data = nullptr;
    std::size_t stride = 0;
};

namespace detail {

// A tile of Rows x (Panels * 32) outputs, each its own chain of fused multiply-adds over ascending inputs. The tile
// decides only which chains run side by side, never the order inside one: any tile gives the same bits.
template <std::size_t Rows, std::size_t Panels, weight_format Weight>
inline void product_tile(const rows_in& x, std::size_t row, const packed_matrix<Weight>& w, std::size_t panel,
                         const rows_out& y) {
    constexpr std::size_t width = packed_matrix<Weight>::panel_width;
    constexpr std::size_t vectors = Panels * width / 16;
    f32x16 sums[Rows][vectors];
    for (auto& of_row : sums)
        for (auto& s : of_row)
            s = f32x16::zero();

    const Weight* weights[Panels];
    for (std::size_t p = 0; p < Panels; ++p)
        weights[p] = w.panel(panel + p);
    const float* in = x.data + row * x.stride;

    for (std::size_t k = 0; k < w.inputs(); ++k) {
        f32x16 column[vectors];
        for (std::size_t v = 0; v < vectors; ++v)
            column[v] = f32x16::load(weights[v / 2] + k * width + v % 2 * 16);
        for (std::size_t r = 0; r < Rows; ++r) {
            const f32x16 a = f32x16::broadcast(in[r * x.stride + k]);
            for (std::size_t v = 0; v < vectors; ++v)
                sums[r][v] = fma(a, column[v], sums[r][v]);
        }
    }
    for (std::size_t r = 0; r < Rows; ++r)
        for (std::size_t v = 0; v < vectors; ++v) {
            const std::size_t output = panel * width + v * 16;
            if (output >= w.outputs())
                break;
            float* to = y.data + (row + r) * y.stride + output;
            const std::size_t left = w.outputs() - output;
            left >= 16 ? sums[r][v].store(to) : sums[r][v].store_first(to, left);
        }
}

// All rows against panels [panel, panel + Panels).
template <std::size_t Panels, weight_format Weight>
inline void product_panels(const rows_in& x, const packed_matrix<Weight>& w, std::size_t panel, const rows_out& y) {
    constexpr std::size_t tall = (native_lanes == 16 ? 12 : 3) / Panels; // accumulators that fit the registers
    std::size_t row = 0;
    if constexpr (tall > 1)
        for (; row + tall <= x.rows; row += tall)
            product_tile<tall, Panels>(x, row, w, panel, y);
    if constexpr (tall > 4)
        for (; row + 4 <= x.rows; row += 4)
            product_tile<4, Panels>(x, row, w, panel, y);
    for (; row < x.rows; ++row)
        product_tile<1, Panels>(x, row, w, panel, y);
}

} // namespace detail

/// y = x W^T for packed weights. (rows, inputs) x (outputs, inputs) -> (rows, outputs)
/// Each output is one chain of fused multiply-adds over ascending inputs, so its bits depend neither on the number of
/// rows nor on threads nor on the vector width. Few rows run four panels side by side, to fill the machine's pipes.
template <weight_format Weight>
inline void product(const rows_in& x, const packed_matrix<Weight>& w, const rows_out& y, team& threads) {
    const std::size_t wide = x.rows < 4 ? 4 : 1;
    const std::size_t jobs = (w.panels() + wide - 1) / wide;
    threads.share(jobs, x.rows * w.inputs() * w.outputs(), [&](std::size_t begin, std::size_t end) {
        std::size_t panel = begin * wide;
        const std::size_t last = std::min(end * wide, w.panels());
        if (wide == 4)
            for (; panel + 4 <= last; panel += 4)
                for (std::size_t row = 0; row < x.rows; ++row)
                    detail::product_tile<1, 4>(x, row, w, panel, y);
        for (; panel < last; ++panel)
            detail::product_panels<1>(x, w, panel, y);
    });
}

} // namespace kvcache
