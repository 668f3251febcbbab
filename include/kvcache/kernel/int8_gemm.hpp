// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/prefetch.hpp>
#include <kvcache/kernel/gemm_microkernel.hpp>
#include <kvcache/kernel/int8_dot.hpp>
#include <kvcache/kernel/int8_matrix.hpp>
#include <kvcache/kernel/int8_rows.hpp>
#include <kvcache/kernel/int8_words.hpp>
#include <kvcache/kernel/strided_rows.hpp>
#include <kvcache/kernel/thread_pool.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

// Rows [row, row + Rows) with the 16 outputs of each of Panels panels, `step` apart.
template <std::size_t Rows, std::size_t Panels>
inline void int8_tile(const int8_rows& x, std::size_t row, const int8_matrix& w, std::size_t panel, std::size_t step,
                      const rows_out& y) {
    int8_vector sums[Rows * Panels * int8_parts]; // flat: GCC 12 does not keep nested arrays in registers
    KVCACHE_UNROLL for (std::size_t i = 0; i < Rows * Panels * int8_parts; ++i) sums[i] = no_sums();
    const int8_activation* from = x.row(row);
    const std::size_t stride = x.stride();
    const std::int8_t* weights[Panels];
    KVCACHE_UNROLL for (std::size_t p = 0; p < Panels; ++p) weights[p] = w.panel(panel + p * step);
    if constexpr (Rows > 1)
        for (std::size_t r = 0; r < Rows; ++r)
            for (std::size_t p = 0; p < Panels; ++p)
                prefetch_to_write(y.data, (row + r) * y.stride + (panel + p * step) * 16);
    constexpr std::size_t soon = 4; // prefetch distance in groups of four inputs: the weights come from the L2 cache
    for (std::size_t four = 0; four < w.fours(); ++four, from += 4) {
        decltype(load_weights(weights[0], 0)) these[Panels * int8_parts];
        KVCACHE_UNROLL for (std::size_t i = 0; i < Panels * int8_parts; ++i) these[i] =
            load_weights(weights[i / int8_parts] + four * 64, i % int8_parts);
        KVCACHE_UNROLL for (std::size_t r = 0; r < Rows; ++r) {
            const auto own = load_four(from + r * stride);
            if (Rows > 1 && r < Panels)
                prefetch(weights[r], (four + soon) * 64);
            KVCACHE_UNROLL for (std::size_t i = 0; i < Panels * int8_parts; ++i) {
                auto& sum = sums[r * Panels * int8_parts + i];
                sum = add_dots(sum, these[i], own);
            }
        }
    }
    for (std::size_t r = 0; r < Rows; ++r)
        for (std::size_t p = 0; p < Panels; ++p) {
            const std::size_t of = panel + p * step, output = of * 16;
            const std::size_t left = std::min<std::size_t>(16, w.outputs() - output);
            const f32x16 scale = f32x16::broadcast(x.scale(row + r)) * f32x16::load(w.scales(of));
            (exact_sums(sums + (r * Panels + p) * int8_parts, w.sums(of)) * scale)
                .store_up_to(y.data + (row + r) * y.stride + output, left);
        }
}

// Some rows with the outputs of up to Wide panels, in tiles of at most Tall rows, as equal as possible.
template <std::size_t Tall, std::size_t Wide>
void int8_tiles(const int8_rows& x, row_range left, const int8_matrix& w, std::size_t panel, std::size_t panels,
                const rows_out& y) {
    for (std::size_t tiles = (left.size() + Tall - 1) / Tall; tiles > 0; --tiles) {
        const std::size_t rows = (left.size() + tiles - 1) / tiles;
        with_rows<Tall>(rows, [&]<std::size_t Rows> {
            with_rows<Wide>(panels,
                            [&]<std::size_t Panels> { int8_tile<Rows, Panels>(x, left.first, w, panel, 1, y); });
        });
        left.first += rows;
    }
}

// A single row with every `step`-th panel from `panel` on, up to Wide panels. Each panel is a stream of memory that
// continues where the next call takes the next panel.
template <std::size_t Wide>
void int8_streams(const int8_rows& x, const int8_matrix& w, std::size_t panel, std::size_t step, const rows_out& y) {
    with_rows<Wide>((w.panels() - panel + step - 1) / step,
                    [&]<std::size_t Panels> { int8_tile<1, Panels>(x, 0, w, panel, step, y); });
}

#if KVCACHE_COMPILED
extern template void int8_tiles<int8_rows_together, int8_panels_together>(const int8_rows&, row_range,
                                                                          const int8_matrix&, std::size_t, std::size_t,
                                                                          const rows_out&);
extern template void int8_streams<int8_panels_of_one>(const int8_rows&, const int8_matrix&, std::size_t, std::size_t,
                                                      const rows_out&);
#endif

// Number of strips of up to `wide` panels, a multiple of the number of threads.
inline std::size_t int8_strips(const int8_matrix& w, std::size_t wide, const thread_pool& threads) {
    const std::size_t shares = wide * threads.threads();
    return std::min(w.panels(), (w.panels() + shares - 1) / shares * threads.threads());
}

// All rows, in blocks, with strips of adjacent panels.
template <std::size_t Tall, std::size_t Wide>
inline void int8_blocks(const int8_rows& x, std::size_t rows, const int8_matrix& w, const rows_out& y,
                        thread_pool& threads) {
    constexpr std::size_t block = 48 * Tall;
    const std::size_t blocks = (rows + block - 1) / block, strips = int8_strips(w, Wide, threads);
    threads.parallel_for(blocks * strips, rows * w.inputs() * w.outputs(), [&](std::size_t begin, std::size_t end) {
        for (std::size_t job = begin; job < end; ++job) {
            const std::size_t first = job / strips * block, strip = job % strips;
            const std::size_t panel = w.panels() * strip / strips, behind = w.panels() * (strip + 1) / strips;
            int8_tiles<Tall, Wide>(x, {first, std::min(first + block, rows)}, w, panel, behind - panel, y);
        }
    });
}

// A single row: each weight is read from memory once.
template <std::size_t Wide>
inline void int8_row(const int8_rows& x, const int8_matrix& w, const rows_out& y, thread_pool& threads) {
    const std::size_t strips = int8_strips(w, Wide, threads);
    threads.parallel_for_strided(strips, 1, w.inputs() * w.outputs(), [&](std::size_t begin, std::size_t end) {
        for (std::size_t strip = begin; strip < end; ++strip)
            int8_streams<Wide>(x, w, strip, strips, y);
    });
}

#if defined(KVCACHE_INT8_WORDS)

// A block of rows, packed in tiles of up to Tall rows, with the 16 outputs of a panel.
template <std::size_t Tall>
inline void word_gemm(const int8_rows& x, const word_blocks& blocks, std::size_t block, const int8_matrix& w,
                      std::size_t panel, const rows_out& y) {
    int8_words words;
    alignas(line_bytes) std::int32_t sums[word_blocks::most_tiles * packed_rows][16];
    const row_tiles tiles = blocks.tiles(block);
    const std::int8_t* next = w.panel(std::min(panel + 1, w.panels() - 1));
    std::size_t four = 0;
    do { // at least once: without inputs it writes zeros
        const std::size_t fours = std::min(word_fours, w.fours() - four);
        words.widen(w.panel(panel) + four * 64, fours, next + four * 64);
        for (std::size_t t = 0; t < tiles.count; ++t)
            with_rows<Tall>(tiles.rows(t), [&]<std::size_t Rows> {
                word_tile<Rows>(x.packed(blocks.place(block, t), w.inputs()) + four * 2 * packed_rows, words.data,
                                fours * 2, sums[tiles.row(t)], four == 0);
            });
        four += fours;
    } while (four < w.fours());
    const f32x16 levels = f32x16::load(w.scales(panel));
    const std::size_t first = blocks.begin(block), rows = blocks.begin(block + 1) - first;
    for (std::size_t r = 0; r < rows; ++r) {
        alignas(64) float exact[16];
        std::copy_n(sums[r], 16, exact);
        (f32x16::load(exact) * (f32x16::broadcast(x.scale(first + r)) * levels))
            .store_up_to(y.data + (first + r) * y.stride + panel * 16, w.outputs() - panel * 16);
    }
}

#endif

} // namespace detail

/// GEMM y = x W^T with int8 weights and activations. (rows, inputs) x (outputs, inputs) -> (rows, outputs)
/// Sums are exact integers, and each output is rounded and scaled once, so its bits depend neither on the number of
/// rows nor on threads nor on the machine. Weights are scaled by channel and activations by token (Yao et al. 2022,
/// ZeroQuant). `scratch` stores the quantized rows. A template, so that only translation units that use it compile it.
template <std::same_as<thread_pool> Threads>
inline void gemm(const rows_in& x, const int8_matrix& w, const rows_out& y, Threads& threads, int8_rows& scratch) {
    if (x.rows == 0)
        return;
    scratch.quantize(x, w.inputs(), threads);
#if defined(KVCACHE_INT8_WORDS)
    if (x.rows >= detail::fewest_word_rows) {
        const detail::word_blocks blocks(x.rows);
        scratch.pack(blocks, w.inputs(), threads);
        threads.parallel_for(
            blocks.count * w.panels(), x.rows * w.inputs() * w.outputs(), [&](std::size_t begin, std::size_t end) {
                for (std::size_t job = begin; job < end; ++job)
                    detail::word_gemm<detail::packed_rows>(scratch, blocks, job / w.panels(), w, job % w.panels(), y);
            });
        return;
    }
#endif
    if (x.rows == 1)
        detail::int8_row<detail::int8_panels_of_one>(scratch, w, y, threads);
    else
        detail::int8_blocks<detail::int8_rows_together, detail::int8_panels_together>(scratch, x.rows, w, y, threads);
}

}} // namespace kvcache
