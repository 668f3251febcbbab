// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/kernel/gemm_microkernel.hpp>
#include <kvcache/kernel/gemm_packing.hpp>
#include <kvcache/kernel/packed_matrix.hpp>
#include <kvcache/kernel/simd.hpp>
#include <kvcache/kernel/strided_rows.hpp>
#include <kvcache/kernel/thread_pool.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

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

// The blocks of rows of a GEMM: multiples of a whole tile, since short tiles leave the FMA pipes idle.
class row_blocks {
public:
    explicit row_blocks(std::size_t rows) : rows_(rows), count_((rows + block_rows - 1) / block_rows) {}

    [[nodiscard]] std::size_t count() const { return count_; }
    [[nodiscard]] std::size_t begin(std::size_t b) const {
        return std::min(rows_, (rows_ * b / count_ + packed_rows - 1) / packed_rows * packed_rows);
    }
    [[nodiscard]] row_range of(std::size_t b) const { return {begin(b), begin(b + 1)}; }

    // Calls body(row block, first, last) for the jobs [begin, end), where each row block has `jobs` jobs.
    template <class Body>
    static void each(std::size_t jobs, std::size_t begin, std::size_t end, Body body) {
        for (std::size_t last; begin < end; begin = last) {
            const std::size_t b = begin / jobs;
            last = std::min(end, (b + 1) * jobs);
            body(b, begin - b * jobs, last - b * jobs);
        }
    }

private:
    std::size_t rows_, count_;
};

// Products of packed rows with all strips, for the inputs that are packed. One block of rows and inputs at a time stays
// in the L2 cache. With several threads, two blocks halve the number of waits.
template <class Matrix>
void gemm_of_packed_rows(const rows_in& x, const Matrix& w, const row_blocks& rows,
                         const gemm_macrokernel<Matrix>& block, thread_pool& threads) {
    constexpr std::size_t tiles = block_rows / packed_rows;
    constexpr std::size_t cut = 4; // pieces of a strip at the end of a loop, for load balancing
    constexpr std::size_t block_floats = block_inputs * block_rows;
    const std::size_t work = x.rows * w.inputs() * w.outputs(), strips = block.strips();
    const std::size_t at_once = std::min<std::size_t>(threads.threads() > 1 ? 2 : 1, rows.count());
    float* const packed = threads.scratch(at_once * block_floats);
    for (std::size_t first = 0; first < rows.count(); first += at_once) {
        const std::size_t blocks = std::min(at_once, rows.count() - first);
        for (std::size_t k = 0; k < block.packed_blocks(); ++k) {
            threads.parallel_for(blocks * tiles, x.rows * w.inputs(), [&](std::size_t begin, std::size_t end) {
                for (std::size_t t = begin; t < end; ++t)
                    block.pack_tile(rows.of(first + t / tiles), t % tiles, k, packed + t / tiles * block_floats);
            });
            threads.parallel_for_strided(blocks * strips, cut, work, [&](std::size_t begin, std::size_t end) {
                row_blocks::each(strips * cut, begin, end, [&](std::size_t b, std::size_t piece, std::size_t last) {
                    const float* soon = k + 1 < block.packed_blocks()
                                            ? block.unpacked(rows.begin(first + b), k + 1)
                                            : block.unpacked(rows.begin(first + b + at_once), 0);
                    block.run_packed(block.packed(rows.of(first + b), k, packed + b * block_floats, soon), piece, last,
                                     cut);
                });
            });
        }
    }
}

} // namespace detail

/// GEMM y = x W^T with packed weights. (rows, inputs) x (outputs, inputs) -> (rows, outputs)
/// Each output is one chain of fused multiply-adds over ascending inputs, so its bits depend neither on the number of
/// rows nor on threads nor on the vector width. Blocking follows Goto & van de Geijn 2008: a block of rows stays in the
/// L2 cache while the strips of weights stream past it.
/// Cost: rows * inputs * outputs multiply-adds, near the machine's peak from some tens of rows on. With few rows,
/// reading the weights dominates.
template <weight_format Weight>
void gemm(const rows_in& x, const packed_matrix<Weight>& w, const rows_out& y, thread_pool& threads) {
    const detail::gemm_macrokernel<packed_matrix<Weight>> block(x, w, y);
    const std::size_t work = x.rows * w.inputs() * w.outputs();
    if (x.rows == 0)
        return;
    const std::size_t strips = w.strips();
    if (x.rows <= detail::tallest_tile) {
        const std::size_t at_once = detail::strips_at_once(x.rows);
        threads.parallel_for_strided((strips + at_once - 1) / at_once, 1, work,
                                     [&](std::size_t begin, std::size_t end) {
                                         block.run_few(begin * at_once, std::min(end * at_once, strips));
                                     });
        return;
    }
    const detail::row_blocks rows(x.rows);
    detail::gemm_of_packed_rows(x, w, rows, block, threads);
    if (const std::size_t k = w.inputs() / 4 * 4; k < w.inputs() || k == 0)
        threads.parallel_for_strided(rows.count() * strips, 1, work, [&](std::size_t begin, std::size_t end) {
            detail::row_blocks::each(strips, begin, end, [&](std::size_t b, std::size_t strip, std::size_t last) {
                block.run_rest(rows.of(b), strip, last, k);
            });
        });
}

#if KVCACHE_COMPILED
extern template void gemm(const rows_in&, const packed_matrix<float>&, const rows_out&, thread_pool&);
extern template void gemm(const rows_in&, const packed_matrix<bfloat16>&, const rows_out&, thread_pool&);
extern template void gemm(const rows_in&, const packed_matrix<half>&, const rows_out&, thread_pool&);
#endif

}} // namespace kvcache
