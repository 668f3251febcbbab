// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/kernel/block_int8.hpp>
#include <kvcache/kernel/block_matrix.hpp>
#include <kvcache/kernel/gemm_microkernel.hpp>
#include <kvcache/kernel/int8_block_rows.hpp>
#include <kvcache/kernel/strided_rows.hpp>
#include <kvcache/kernel/thread_pool.hpp>

#include <algorithm>
#include <cstddef>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

/// Panels that are unpacked together, so that the sums of a tile are prepared once for all of them.
inline constexpr std::size_t int8_strip_panels = 4;

/// Tiles of a block of rows, whose levels stay in the L2 cache.
inline constexpr std::size_t int8_block_tiles = 32;

/// Panels of a strip, unpacked for a block of inputs.
struct unpacked_strip {
    unpacked_panel panels[int8_strip_panels];
};

/// Products of a tile with the panels of an unpacked strip, for the inputs [k, k + inputs).
template <std::size_t Group, bool Offset>
void multiply_tile_with_strip(const int8_block_rows::tile& x, const unpacked_strip& w, const block_strip& strip,
                              row_range of_inputs, const rows_out& y) {
    const std::size_t inputs = of_inputs.size();
    sums_begin begin;
    begin.set(Group == 32 ? x.of_32.sums : x.of_16.sums, inputs / Group * x.rows,
              zero_of_operands(layout_of(strip.format)));
    with_rows<int8_block_rows::tile_rows>(x.rows, [&]<std::size_t Rows> {
        for (std::size_t panel = 0; panel < strip.panels; ++panel) {
            const std::size_t output = strip.first + panel * 16;
            multiply_tile<Rows, Group, Offset>(x, begin.data(), w.panels[panel], inputs,
                                               {y.data + x.row * y.stride + output, y.stride}, strip.last - output,
                                               of_inputs.first == 0);
        }
    });
}

/// Products of some tiles with a strip.
KVCACHE_LAZY inline void multiply_int8_strip(const int8_block_rows& x, row_range tiles, const block_matrix& w,
                                             std::size_t index, const rows_out& y) {
    const block_strip strip = w.strip(index, int8_strip_panels);
    const block_layout layout = layout_of(strip.format);
    unpacked_strip unpacked;
    for (std::size_t k = 0; k < w.inputs(); k += unpacked_inputs) {
        const row_range inputs{k, std::min(k + unpacked_inputs, w.inputs())};
        with_format(strip.format, [&]<block_format Format> {
            for (std::size_t panel = 0; panel < strip.panels; ++panel)
                unpack_panel<Format>(strip.panel(panel), k, inputs.size(), unpacked.panels[panel]);
        });
        for (std::size_t t = tiles.first; t < tiles.last; ++t) {
            const int8_block_rows::tile tile = x.at(t, k);
            if (layout.group == 32)
                layout.offset ? multiply_tile_with_strip<32, true>(tile, unpacked, strip, inputs, y)
                              : multiply_tile_with_strip<32, false>(tile, unpacked, strip, inputs, y);
            else
                layout.offset ? multiply_tile_with_strip<16, true>(tile, unpacked, strip, inputs, y)
                              : multiply_tile_with_strip<16, false>(tile, unpacked, strip, inputs, y);
        }
    }
}

/// Products of one row with some strips of row_panels panels.
KVCACHE_LAZY inline void multiply_int8_strips(const int8_block_rows::tile& x, const block_matrix& w, std::size_t strip,
                                              std::size_t last, float* y) {
    for (; strip < last; ++strip) {
        const block_strip at = w.strip(strip, row_panels);
        with_format(at.format, [&]<block_format Format> {
            if (at.panels == row_panels)
                return multiply_int8_row<Format, row_panels>(x, at, 0, w.inputs(), y + at.first);
            for (std::size_t panel = 0; panel < at.panels; ++panel)
                multiply_int8_row<Format, 1>(x, at, panel, w.inputs(), y + at.first);
        });
    }
}

} // namespace detail

/// GEMM y = x W^T with weights in quantised blocks and activations rounded to int8 in blocks of 32 (int8_block_rows).
/// (rows, inputs) x (outputs, inputs) -> (rows, outputs) Another, coarser map than the exact product. Sums of products
/// of levels are exact, and they are scaled and added in one order (detail::multiply_tile), so the bits depend neither
/// on the number of rows nor on threads nor on the processor. Cost: one row reads each block once, and is bound by
/// memory; more rows unpack each block once for every block of rows.
KVCACHE_LAZY void gemm(const rows_in& x, const block_matrix& w, const rows_out& y, thread_pool& threads,
                       int8_block_rows& scratch) {
    if (x.rows == 0)
        return;
    if (w.inputs() == 0) {
        for (std::size_t row = 0; row < x.rows; ++row)
            std::fill_n(y.data + row * y.stride, w.outputs(), 0.0f);
        return;
    }
    scratch.quantize(x, w.inputs(), threads);
    const std::size_t work = x.rows * w.inputs() * w.outputs();
    if (x.rows == 1) {
        const int8_block_rows::tile row = scratch.at(0, 0);
        threads.parallel_for_strided(w.strips(detail::row_panels), 1, work, [&](std::size_t begin, std::size_t end) {
            detail::multiply_int8_strips(row, w, begin, end, y.data);
        });
        return;
    }
    const std::size_t tiles = scratch.tiles(), strips = w.strips(detail::int8_strip_panels);
    const std::size_t blocks = (tiles + detail::int8_block_tiles - 1) / detail::int8_block_tiles;
    threads.parallel_for(blocks * strips, work, [&](std::size_t begin, std::size_t end) {
        for (std::size_t job = begin; job < end; ++job) {
            const std::size_t b = job / strips;
            const row_range of{tiles * b / blocks, tiles * (b + 1) / blocks};
            detail::multiply_int8_strip(scratch, of, w, job % strips, y);
        }
    });
}

#if KVCACHE_COMPILED
extern template void gemm<>(const rows_in&, const block_matrix&, const rows_out&, thread_pool&, int8_block_rows&);
#endif

}} // namespace kvcache
