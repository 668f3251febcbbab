// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/prefetch.hpp>
#include <kvcache/kernel/int8_dot.hpp>
#include <kvcache/kernel/int8_matrix.hpp>
#include <kvcache/kernel/int8_rows.hpp>
#include <kvcache/kernel/int8_words.hpp>
#include <kvcache/kernel/product_tile.hpp>
#include <kvcache/kernel/strided_rows.hpp>
#include <kvcache/kernel/team.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace kvcache {

namespace detail {

// Rows [row, row + Rows) with the 16 outputs of each of some panels.
template <std::size_t Rows, std::size_t Panels>
inline void int8_tile(const int8_rows& x, std::size_t row, const int8_matrix& w, std::size_t panel, const rows_out& y) {
    int8_vector sums[Rows * Panels * int8_parts]; // flat: GCC 12 keeps no nested array in registers
    unrolled<Rows * Panels * int8_parts>([&](auto i) KVCACHE_INLINE { sums[i] = no_sums(); });
    const int8_activation* from = x.row(row);
    const std::size_t stride = x.stride();
    const std::int8_t* weights[Panels];
    unrolled<Panels>([&](auto p) KVCACHE_INLINE { weights[p] = w.panel(panel + p); });
    if constexpr (Rows > 1)
        for (std::size_t r = 0; r < Rows; ++r)
            for (std::size_t p = 0; p < Panels; ++p)
                prefetch_to_write(y.data, (row + r) * y.stride + (panel + p) * 16);
    constexpr std::size_t soon = 4; // fours ahead: weights come from the second cache
    for (std::size_t four = 0; four < w.fours(); ++four, from += 4)
        unrolled<int8_parts>([&](auto part) KVCACHE_INLINE {
            using loaded = decltype(load_weights(weights[0], part));
            loaded these[Panels];
            unrolled<Panels>([&](auto p) KVCACHE_INLINE { these[p] = load_weights(weights[p] + four * 64, part); });
            unrolled<Rows>([&](auto r) KVCACHE_INLINE {
                const auto own = load_four(from + r * stride);
                if constexpr (Rows > 1 && r < Panels && part == 0)
                    prefetch(weights[r], (four + soon) * 64);
                unrolled<Panels>([&](auto p) KVCACHE_INLINE {
                    auto& sum = sums[(r * Panels + p) * int8_parts + part];
                    sum = add_dots(sum, these[p], own);
                });
            });
        });
    for (std::size_t r = 0; r < Rows; ++r)
        for (std::size_t p = 0; p < Panels; ++p) {
            const std::size_t output = (panel + p) * 16, left = std::min<std::size_t>(16, w.outputs() - output);
            const f32x16 scale = f32x16::broadcast(x.scale(row + r)) * f32x16::load(w.scales(panel + p));
            (exact_sums(sums + (r * Panels + p) * int8_parts, w.sums(panel + p)) * scale)
                .store_up_to(y.data + (row + r) * y.stride + output, left);
        }
}

// Rows [row, last) with the outputs of up to Wide panels, in tiles of at most Tall rows, as equal as they can be.
template <std::size_t Tall, std::size_t Wide>
KVCACHE_ONCE void int8_tiles(const int8_rows& x, std::size_t row, std::size_t last, const int8_matrix& w,
                             std::size_t panel, std::size_t panels, const rows_out& y) {
    for (std::size_t tiles = (last - row + Tall - 1) / Tall; tiles > 0; --tiles) {
        const std::size_t rows = (last - row + tiles - 1) / tiles;
        with_rows<Tall>(rows, [&]<std::size_t Rows> {
            with_rows<Wide>(panels, [&]<std::size_t Panels> { int8_tile<Rows, Panels>(x, row, w, panel, y); });
        });
        row += rows;
    }
}

#if defined(KVCACHE_COMPILED)
extern template void int8_tiles<int8_rows_together, int8_panels_together>(const int8_rows&, std::size_t, std::size_t,
                                                                          const int8_matrix&, std::size_t, std::size_t,
                                                                          const rows_out&);
extern template void int8_tiles<1, int8_panels_of_one>(const int8_rows&, std::size_t, std::size_t, const int8_matrix&,
                                                       std::size_t, std::size_t, const rows_out&);
#endif

// All rows, in blocks, with strips of up to Wide panels, shared among threads.
template <std::size_t Tall, std::size_t Wide>
void int8_blocks(const int8_rows& x, std::size_t rows, const int8_matrix& w, const rows_out& y, team& threads) {
    constexpr std::size_t block = 48 * Tall;
    const std::size_t blocks = (rows + block - 1) / block, strips = (w.panels() + Wide - 1) / Wide;
    threads.share(blocks * strips, rows * w.inputs() * w.outputs(), [&](std::size_t begin, std::size_t end) {
        for (std::size_t job = begin; job < end; ++job) {
            const std::size_t first = job / strips * block, panel = job % strips * Wide;
            int8_tiles<Tall, Wide>(x, first, std::min(first + block, rows), w, panel,
                                   std::min(Wide, w.panels() - panel), y);
        }
    });
}

#if defined(KVCACHE_INT8_WORDS)

// A block of packed rows with the 16 outputs of a panel.
inline void word_product(const int8_rows& x, const word_blocks& blocks, std::size_t block, const int8_matrix& w,
                         std::size_t panel, const rows_out& y) {
    int8_words words;
    alignas(line_bytes) std::int32_t sums[word_blocks::most_tiles * packed_rows][16];
    const row_tiles tiles = blocks.tiles(block);
    const std::int8_t* next = w.panel(std::min(panel + 1, w.panels() - 1));
    std::size_t four = 0;
    do { // once at least: without inputs it writes zeros
        const std::size_t fours = std::min(word_fours, w.fours() - four);
        words.widen(w.panel(panel) + four * 64, fours, next + four * 64);
        for (std::size_t t = 0; t < tiles.count; ++t)
            with_rows<packed_rows>(tiles.rows(t), [&]<std::size_t Rows> {
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

/// y = x W^T with int8 weights and activations. (rows, inputs) x (outputs, inputs) -> (rows, outputs)
/// Sums are exact integers and each output is rounded once and scaled, so its bits depend neither on the number of rows
/// nor on threads nor on the machine (weights a channel and activations a token: Yao et al. 2022, ZeroQuant).
/// `scratch` takes the rows as int8.
inline void product(const rows_in& x, const int8_matrix& w, const rows_out& y, team& threads, int8_rows& scratch) {
    if (x.rows == 0)
        return;
    scratch.quantize(x, w.inputs(), threads);
#if defined(KVCACHE_INT8_WORDS)
    if (x.rows >= detail::fewest_word_rows) {
        const detail::word_blocks blocks(x.rows);
        scratch.pack(blocks, w.inputs(), threads);
        threads.share(blocks.count * w.panels(), x.rows * w.inputs() * w.outputs(),
                      [&](std::size_t begin, std::size_t end) {
                          for (std::size_t job = begin; job < end; ++job)
                              detail::word_product(scratch, blocks, job / w.panels(), w, job % w.panels(), y);
                      });
        return;
    }
#endif
    if (x.rows == 1)
        detail::int8_blocks<1, detail::int8_panels_of_one>(scratch, 1, w, y, threads);
    else
        detail::int8_blocks<detail::int8_rows_together, detail::int8_panels_together>(scratch, x.rows, w, y, threads);
}

} // namespace kvcache
