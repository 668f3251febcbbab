// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/core/platform/machine.hpp>
#include <kvcache/kernel/gemm_microkernel.hpp>
#include <kvcache/kernel/int8_dot.hpp>
#include <kvcache/kernel/int8_matrix.hpp>
#include <kvcache/kernel/math.hpp>
#include <kvcache/kernel/strided_rows.hpp>
#include <kvcache/kernel/thread_pool.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Activations as int8 with one scale for each row. The memory is reused from one GEMM to the next.
class int8_rows {
public:
    /// Quantizes rows: x = q * scale, |q| <= 127, rounded to nearest, ties to even. A row of zeros, or of values too
    /// small to divide by, has only zero levels. A row with an infinite or NaN value has zero levels and the scale NaN.
    /// (rows, inputs) Cost: reads every value twice.
    void quantize(const rows_in& x, std::size_t inputs, thread_pool& threads) {
        stride_ = (inputs + 3) / 4 * 4 + line_bytes / sizeof(number); // rows begin in different cache sets
        if (numbers_.size() < x.rows * stride_)
            numbers_ = aligned_vector<number>(x.rows * stride_);
        if (scales_.size() < x.rows)
            scales_ = aligned_vector<float>(x.rows);
        threads.parallel_for(x.rows, x.rows * inputs * 4, [&](std::size_t begin, std::size_t end) {
            for (std::size_t row = begin; row < end; ++row)
                quantize_row(x.data + row * x.stride, inputs, row);
        });
    }

#if defined(KVCACHE_INT8_WORDS)
    /// Packs the quantized rows for word_tile(). (rows, inputs)
    void pack(const detail::word_blocks& blocks, std::size_t inputs, thread_pool& threads) {
        const std::size_t pairs = pairs_of(inputs), tiles = blocks.count * detail::word_blocks::most_tiles;
        if (packed_.size() < tiles * pairs * detail::packed_rows)
            packed_ = aligned_vector<detail::word_pair>(tiles * pairs * detail::packed_rows);
        threads.parallel_for(tiles, blocks.rows * inputs, [&](std::size_t begin, std::size_t end) {
            for (std::size_t job = begin; job < end; ++job) {
                const std::size_t block = job / detail::word_blocks::most_tiles, tile = job - blocks.place(block, 0);
                const detail::row_tiles of = blocks.tiles(block);
                if (tile < of.count)
                    detail::pack_a(reinterpret_cast<const detail::word_pair*>(row(blocks.begin(block) + of.row(tile))),
                                   stride_ / 2, of.rows(tile), pairs,
                                   packed_.data() + job * pairs * detail::packed_rows);
            }
        });
    }
    /// Packed rows of a tile, by its index. (pairs, packed_rows)
    [[nodiscard]] const detail::word_pair* packed(std::size_t place, std::size_t inputs) const noexcept {
        return packed_.data() + place * pairs_of(inputs) * detail::packed_rows;
    }
#endif

    /// Quantized row, padded with zeros to a multiple of four. (inputs)
    [[nodiscard]] const detail::int8_activation* row(std::size_t i) const noexcept {
        return numbers_.data() + i * stride_;
    }
    /// Activations from one row to the next.
    [[nodiscard]] std::size_t stride() const noexcept {
        return stride_;
    }
    [[nodiscard]] float scale(std::size_t i) const noexcept {
        return scales_[i];
    }

private:
    using number = detail::int8_activation;

    void quantize_row(const float* x, std::size_t inputs, std::size_t row) {
        f32x16 top = f32x16::zero(), poison = f32x16::zero(); // poison: NaN after infinities and NaN
        detail::by_sixteen(inputs, [&](std::size_t i, std::size_t n) {
            const f32x16 v = f32x16::load_up_to(x + i, n);
            top = max(top, max(v, -v));
            poison = fma(v, f32x16::zero(), poison);
        });
        const float most = largest(top) + sum(poison), level_of_one = 127.0f / most;
        number* to = numbers_.data() + row * stride_;
        scales_[row] = most / 127.0f;
        if (!std::isfinite(level_of_one)) {
            std::fill_n(to, (inputs + 3) / 4 * 4, static_cast<number>(detail::activation_offset));
            return;
        }
        const f32x16 levels = f32x16::broadcast(level_of_one);
        const f32x16 magic = f32x16::broadcast(12582912.0f); // 1.5 * 2^23: adding it rounds to an integer
        detail::by_sixteen(inputs, [&](std::size_t i, std::size_t n) {
            detail::put_activations(fma(f32x16::load_up_to(x + i, n), levels, magic) - magic, to + i);
        });
    }

#if defined(KVCACHE_INT8_WORDS)
    [[nodiscard]] static constexpr std::size_t pairs_of(std::size_t inputs) noexcept {
        return (inputs + 3) / 4 * 2;
    }

    aligned_vector<detail::word_pair> packed_;
#endif
    std::size_t stride_ = 0;
    aligned_vector<number> numbers_;
    aligned_vector<float> scales_;
};

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
