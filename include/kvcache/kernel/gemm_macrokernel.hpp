// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/prefetch.hpp>
#include <kvcache/core/zeroed_memory.hpp>
#include <kvcache/kernel/gemm_microkernel.hpp>
#include <kvcache/kernel/pack_a.hpp>
#include <kvcache/kernel/packed_matrix.hpp>
#include <kvcache/kernel/simd.hpp>
#include <kvcache/kernel/strided_rows.hpp>
#include <kvcache/kernel/tile_sums.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <limits>
#include <utility>

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

// Outputs [first, last) of a strip.
struct strip_outputs {
    std::size_t first, last;

    [[nodiscard]] std::size_t count() const { return last - first; }
    [[nodiscard]] std::size_t panels() const { return (count() + 15) / 16; }
};

// How the macrokernel reads the strips of a matrix.
template <class Matrix>
struct strip_reader;

template <weight_format Weight>
struct strip_reader<packed_matrix<Weight>> {
    using matrix = packed_matrix<Weight>;
    static constexpr std::size_t input_step = 4;                   // blocks of inputs begin at multiples of it
    static constexpr bool buffered = !std::same_as<Weight, float>; // weights are widened to a buffer
    static constexpr bool buffered_by_tile = buffered;             // by the first tile that reads them

    [[nodiscard]] static std::size_t strips(const matrix& w) { return w.strips(); }
    [[nodiscard]] static strip_outputs outputs(const matrix& w, std::size_t strip) {
        return {strip * matrix::strip_width, std::min((strip + 1) * matrix::strip_width, w.outputs())};
    }
    // Weights of a block of inputs from `k` on, for the first tile, which also widens them to the buffer.
    [[nodiscard]] static const Weight* first(const matrix& w, std::size_t strip, std::size_t k, std::size_t, float*) {
        return w.strip(strip) + k * w.width(strip);
    }
    // The bytes of such a block, to prefetch.
    [[nodiscard]] static bytes_ahead bytes(const matrix& w, std::size_t strip, std::size_t k, std::size_t inputs) {
        return {.base = first(w, strip, k, 0, nullptr), .run = inputs * w.width(strip) * sizeof(Weight)};
    }
};

// GEMM of a block of rows with some strips of weights, which a strip_reader reads.
template <class Matrix>
class gemm_macrokernel {
public:
    gemm_macrokernel(const rows_in& x, const Matrix& w, const rows_out& y) : x_(x), w_(w), y_(y) {}

    // Few rows: each weight is read once, by tiles as wide as the registers allow.
    void run_few(std::size_t strip, std::size_t last) const {
        with_rows<tallest_tile>(x_.rows, [&]<std::size_t Rows> { run_few<Rows, strips_at_once(Rows)>(strip, last); });
    }

    // Unpacked rows, for the inputs from `k` on: the up to three inputs left over by packing. Without inputs it writes
    // zeros.
    void run_rest(row_range rows, std::size_t strip, std::size_t last, std::size_t k) const {
        for (; strip < last; ++strip)
            run_strip(rows, strip, k, w_.inputs() - k);
    }

    // Number of input blocks of packed rows; blocks are multiples of input_step inputs.
    [[nodiscard]] std::size_t packed_blocks() const {
        return (w_.inputs() / input_step * input_step + block_inputs - 1) / block_inputs;
    }
    [[nodiscard]] std::size_t packed_input(std::size_t block) const {
        return w_.inputs() / input_step * block / packed_blocks() * input_step;
    }
    [[nodiscard]] std::size_t strips() const { return reader::strips(w_); }

    // Packs the rows of a tile for one block of inputs.
    void pack_tile(row_range rows, std::size_t tile, std::size_t block, float* packed) const {
        const row_tiles tiles(rows.size());
        const std::size_t k = packed_input(block), inputs = packed_input(block + 1) - k;
        if (tile < tiles.count)
            pack_a(x_.data + (rows.first + tiles.row(tile)) * x_.stride + k, x_.stride, tiles.rows(tile), inputs,
                   packed + tile * inputs * packed_rows);
    }
    // Unpacked rows of a block of inputs, to prefetch; null if there are no such rows.
    [[nodiscard]] const float* unpacked(std::size_t row, std::size_t block) const {
        return row < x_.rows ? x_.data + row * x_.stride + packed_input(block) : nullptr;
    }

    // Packed rows from `row` on, for a block of inputs from `k` on; and the rows that are packed next, or null.
    struct packed_block {
        const float* numbers;
        const float* soon;
        std::size_t row;
        row_tiles tiles;
        std::size_t k, inputs;
    };

    // The rows whose tiles pack_tile() wrote to `numbers`. `soon`: rows that are packed next, or null.
    [[nodiscard]] packed_block packed(row_range rows, std::size_t block, const float* numbers,
                                      const float* soon) const {
        const std::size_t k = packed_input(block);
        return {numbers, soon, rows.first, row_tiles(rows.size()), k, packed_input(block + 1) - k};
    }

    // Packed rows with some strips. The first and the last strip may be partial: `cut` pieces a strip, by rows.
    void run_packed(const packed_block& rows, std::size_t piece, std::size_t last, std::size_t cut) const {
        for (std::size_t next; piece < last; piece = next) {
            const std::size_t strip = piece / cut;
            next = std::min(last, (strip + 1) * cut);
            run_packed_strip(rows, strip, rows.tiles.count * (piece - strip * cut) / cut,
                             rows.tiles.count * (next - strip * cut) / cut);
        }
    }

private:
    using matrix = Matrix;
    using reader = strip_reader<Matrix>;
    static constexpr std::size_t input_step = reader::input_step;

    // Weights of a strip, from input `k` on.
    [[nodiscard]] const auto* weights(std::size_t strip, std::size_t k) const {
        return w_.strip(strip) + k * w_.width(strip);
    }

    // `Strips` strips at a time, then the rest with fewer; the last strip may have fewer panels.
    template <std::size_t Rows, std::size_t Strips>
    void run_few(std::size_t strip, std::size_t last) const {
        const std::size_t whole = std::min(last, w_.panels() / matrix::strip_panels);
        for (; strip + Strips <= whole; strip += Strips)
            run_few<Rows, Strips, matrix::strip_panels>(strip);
        if constexpr (Strips > 1)
            run_few<Rows, Strips / 2>(strip, last);
        else if (strip < last)
            with_rows<matrix::strip_panels>(w_.width(strip) / matrix::panel_width,
                                            [&]<std::size_t Width> { run_few<Rows, 1, Width>(strip); });
    }
    template <std::size_t Rows, std::size_t Strips, std::size_t Width>
    void run_few(std::size_t strip) const {
        const std::size_t output = strip * matrix::strip_width;
        gemm_microkernel<Rows, Strips, Width>(x_.data, x_.stride, w_.strip(strip), w_.inputs() * matrix::strip_width,
                                              w_.inputs(), y_.data + output, y_.stride, w_.outputs() - output, true);
    }

    // Buffer for a strip's weights of a block of inputs, widened to float32.
    struct wide_weights {
        alignas(line_bytes) float data[reader::buffered ? block_inputs * strip_panels * 16 : 1];
    };

    // Some tiles with one strip. Prefetches meanwhile: the weights of the next strip in memory, which usually runs
    // next, or after the last strip the next rows.
    void run_packed_strip(const packed_block& rows, std::size_t strip, std::size_t first_tile,
                          std::size_t last_tile) const {
        if (first_tile == last_tile)
            return;
        const strip_outputs outputs = reader::outputs(w_, strip);
        const std::size_t inputs = rows.inputs;
        const bool more = strip + 1 < strips();
        bytes_ahead ahead = more ? weights_behind(rows, strip) : rows_behind(rows);
        const std::size_t asked = asks_of(rows) * ahead.times * ahead.step; // bytes prefetched by a tile
        wide_weights wide;
        const auto* const first = reader::first(w_, strip, rows.k, inputs, wide.data);
        for (std::size_t t = first_tile; t < last_tile; ++t) {
            ahead.at = more ? t * asked : rows.tiles.row(t) * x_.stride * sizeof(float);
            with_rows<packed_rows, fewest_rows>(rows.tiles.rows(t), [&]<std::size_t Rows> {
                with_rows<strip_panels>(outputs.panels(), [&]<std::size_t Panels> {
                    const auto run = [&](const auto* from) {
                        packed_microkernel<Rows, Panels>(
                            rows.numbers + t * inputs * packed_rows, from, wide.data, inputs,
                            y_.data + (rows.row + rows.tiles.row(t)) * y_.stride + outputs.first, y_.stride,
                            outputs.count(), rows.k == 0, ahead);
                    };
                    !reader::buffered_by_tile || t == first_tile ? run(first) : run(std::as_const(wide).data);
                });
            });
        }
    }

    [[nodiscard]] static std::size_t asks_of(const packed_block& rows) { // prefetch points of a tile
        return (rows.inputs + asked_every - 1) / asked_every;
    }
    // The next strip's weights; each tile prefetches a share.
    [[nodiscard]] bytes_ahead weights_behind(const packed_block& rows, std::size_t strip) const {
        bytes_ahead ahead = reader::bytes(w_, strip + 1, rows.k, rows.inputs);
        const std::size_t asks = asks_of(rows) * rows.tiles.count;
        ahead.times = (ahead.run / line_bytes + asks - 1) / asks;
        ahead.step = ahead.run / std::max<std::size_t>(1, asks * ahead.times);
        return ahead;
    }
    // The rows that are packed next; each tile prefetches those in its place.
    [[nodiscard]] bytes_ahead rows_behind(const packed_block& rows) const {
        if (rows.soon == nullptr)
            return {};
        const std::size_t bytes = rows.inputs * sizeof(float);
        return {rows.soon, 0, line_bytes, packed_rows * asked_every / 16, bytes, x_.stride * sizeof(float) - bytes};
    }

    // The same with unpacked rows.
    void run_strip(row_range rows, std::size_t strip, std::size_t k, std::size_t inputs) const {
        const std::size_t output = strip * matrix::strip_width;
        const row_tiles tiles(rows.size());
        for (std::size_t t = 0; t < tiles.count; ++t) {
            const std::size_t at = rows.first + tiles.row(t);
            with_rows<packed_rows, fewest_rows>(tiles.rows(t), [&]<std::size_t Rows> {
                with_rows<matrix::strip_panels>(w_.width(strip) / matrix::panel_width, [&]<std::size_t Panels> {
                    gemm_microkernel<Rows, 1, Panels>(x_.data + at * x_.stride + k, x_.stride, weights(strip, k), 0,
                                                      inputs, y_.data + at * y_.stride + output, y_.stride,
                                                      w_.outputs() - output, k == 0);
                });
            });
        }
    }

    const rows_in& x_;
    const Matrix& w_;
    const rows_out& y_;
};

} // namespace detail

}} // namespace kvcache
