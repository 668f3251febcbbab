// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/kernel/block_matrix.hpp>
#include <kvcache/kernel/block_widen.hpp>
#include <kvcache/kernel/gemm_macrokernel.hpp>
#include <kvcache/kernel/gemm_microkernel.hpp>
#include <kvcache/kernel/gemm_packed_rows.hpp>
#include <kvcache/kernel/strided_rows.hpp>
#include <kvcache/kernel/thread_pool.hpp>

#include <algorithm>
#include <cstddef>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

/// Widens the inputs [k, k + inputs) of a strip as a strip of packed_matrix. (inputs, panels * 16)
KVCACHE_LAZY inline void widen_strip(const block_strip& strip, std::size_t k, std::size_t inputs, float* to) {
    with_format(strip.format, [&]<block_format Format> {
        for (std::size_t panel = 0; panel < strip.panels; ++panel)
            widen_panel<Format>(strip.panel(panel), k, inputs, to + panel * 16, strip.panels * 16);
    });
}

// Each block of inputs is widened once for all tiles of a block of rows.
template <>
struct strip_reader<block_matrix> {
    static constexpr std::size_t input_step = 32;
    static constexpr bool buffered = true;
    static constexpr bool buffered_by_tile = false; // widened before the first tile

    [[nodiscard]] static std::size_t strips(const block_matrix& w) { return w.strips(strip_panels); }
    [[nodiscard]] static strip_outputs outputs(const block_matrix& w, std::size_t strip) {
        const block_strip at = w.strip(strip, strip_panels);
        return {at.first, at.last};
    }
    [[nodiscard]] static const float* first(const block_matrix& w, std::size_t strip, std::size_t k, std::size_t inputs,
                                            float* wide) {
        widen_strip(w.strip(strip, strip_panels), k, inputs, wide);
        return wide;
    }
    [[nodiscard]] static bytes_ahead bytes(const block_matrix& w, std::size_t strip, std::size_t k,
                                           std::size_t inputs) {
        const block_strip at = w.strip(strip, strip_panels);
        const block_layout layout = layout_of(at.format);
        return {.base = at.data + k / layout.weights() * layout.packed_bytes(),
                .run = at.panels * (inputs / 32 * layout.packed_bytes() / (layout.weights() / 32))};
    }
};

/// Products of one row with some strips of row_panels panels.
KVCACHE_LAZY inline void multiply_strips(const float* x, const block_matrix& w, std::size_t strip, std::size_t last,
                                         float* y) {
    for (; strip < last; ++strip) {
        const block_strip at = w.strip(strip, row_panels);
        with_format(at.format, [&]<block_format Format> {
            if (at.panels == row_panels)
                return multiply_row<Format, row_panels>(x, at, 0, w.inputs(), y + at.first);
            for (std::size_t panel = 0; panel < at.panels; ++panel)
                multiply_row<Format, 1>(x, at, panel, w.inputs(), y + at.first);
        });
    }
}

/// Products of few rows with some strips of strip_panels panels, each widened once, in pieces that stay in the L1
/// cache.
template <std::size_t Rows>
void multiply_few(const rows_in& x, const block_matrix& w, std::size_t strip, std::size_t last, const rows_out& y) {
    constexpr std::size_t piece = native_lanes == 16 ? 96 : 256;
    alignas(line_bytes) float wide[piece * strip_panels * 16];
    for (; strip < last; ++strip) {
        const block_strip at = w.strip(strip, strip_panels);
        for (std::size_t k = 0; k < w.inputs(); k += piece) {
            const std::size_t inputs = std::min(piece, w.inputs() - k);
            widen_strip(at, k, inputs, wide);
            with_rows<strip_panels>(at.panels, [&]<std::size_t Panels> {
                gemm_microkernel<Rows, 1, Panels>(x.data + k, x.stride, static_cast<const float*>(wide), 0, inputs,
                                                  y.data + at.first, y.stride, at.last - at.first, k == 0);
            });
        }
    }
}

} // namespace detail

/// GEMM y = x W^T with weights in quantised blocks. (rows, inputs) x (outputs, inputs) -> (rows, outputs)
/// The bits are those of the same GEMM with the dequantised weights in a packed_matrix<float>: each output is one chain
/// of fused multiply-adds over ascending inputs. Cost: one row reads each block once, and is bound by memory or by two
/// multiply-adds a weight; more rows widen each block once for every block of rows.
KVCACHE_LAZY void gemm(const rows_in& x, const block_matrix& w, const rows_out& y, thread_pool& threads) {
    const std::size_t work = x.rows * w.inputs() * w.outputs();
    if (x.rows == 0)
        return;
    if (w.inputs() == 0) {
        for (std::size_t row = 0; row < x.rows; ++row)
            std::fill_n(y.data + row * y.stride, w.outputs(), 0.0f);
    } else if (x.rows == 1) {
        threads.parallel_for_strided(w.strips(detail::row_panels), 1, work, [&](std::size_t begin, std::size_t end) {
            detail::multiply_strips(x.data, w, begin, end, y.data);
        });
    } else if (x.rows <= detail::tallest_tile) {
        threads.parallel_for_strided(w.strips(detail::strip_panels), 1, work, [&](std::size_t begin, std::size_t end) {
            detail::with_rows<detail::tallest_tile>(
                x.rows, [&]<std::size_t Rows> { detail::multiply_few<Rows>(x, w, begin, end, y); });
        });
    } else {
        const detail::gemm_macrokernel<block_matrix> block(x, w, y);
        detail::gemm_of_packed_rows(x, w, detail::row_blocks(x.rows), block, threads);
    }
}

#if KVCACHE_COMPILED
extern template void gemm<>(const rows_in&, const block_matrix&, const rows_out&, thread_pool&);
#endif

}} // namespace kvcache
