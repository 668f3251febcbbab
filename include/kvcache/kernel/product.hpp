// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/aligned.hpp>
#include <kvcache/core/compiled.hpp>
#include <kvcache/kernel/packed_matrix.hpp>
#include <kvcache/kernel/simd.hpp>
#include <kvcache/kernel/team.hpp>

#include <algorithm>
#include <concepts>
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

/// A distance for rows of so many numbers at which neighbouring rows do not compete for the same lines of a cache.
[[nodiscard]] constexpr std::size_t row_stride(std::size_t columns) noexcept {
    return ((columns + 15) / 16 | 1) * 16;
}

namespace detail {

// How the machine's registers are used: a tile of `rows` x `vectors` accumulators, two columns and a broadcast.
// The most rows that run as one tile, with no others behind them.
inline constexpr std::size_t tallest_tile = native_lanes == 16 ? 12 : 6;

// Rows and panels of a tile among many rows. With AVX-512 8 x 3, not 12 x 2: it takes 11 loads for 24 multiply-adds
// where that takes 14, and a core that shares its front end with a neighbour has not the time for more.
inline constexpr std::size_t tile_rows = native_lanes == 16 ? 8 : tallest_tile;
inline constexpr std::size_t tile_panels = native_lanes == 16 ? 3 : 1;

// Panels of 16 outputs that so few rows run side by side: enough chains to fill the pipes, few enough to stay in
// registers.
[[nodiscard]] constexpr std::size_t panels_at_once(std::size_t rows) {
    if (native_lanes == 16)
        return rows == 1 ? 8 : rows <= 5 ? 4 : rows <= 8 ? 3 : 2;
    if (rows == 1)
        return native_lanes == 8 ? 6 : 4;
    return rows == 2 ? 3 : 1;
}

// Inputs that run before the next outputs do, so that their weights come from the first two caches, and rows that do,
// so that their slice stays in the second: more where multiply-adds are twice as fast, as each block reads all weights.
inline constexpr std::size_t block_inputs = 640;
inline constexpr std::size_t block_rows = native_lanes == 16 ? 192 : 96;

// Weights that come soon, fetched meanwhile: so many lines of each of a tile's panels while it runs.
struct weights_ahead {
    const std::byte* base = nullptr;
    std::size_t at = 0;    // bytes from there on
    std::size_t panel = 0; // bytes from one panel to the next
    std::size_t lines = 0;
};

// A tile of Rows x Panels * 16 outputs, each its own chain of fused multiply-adds over ascending inputs, begun at zero
// or gone on with. Panel p's weights lie at w + p * panel. The tile decides only which chains run side by side, never
// the order inside one.
template <std::size_t Rows, std::size_t Panels, weight_format Weight>
inline void product_tile(const float* x, std::size_t x_stride, const Weight* w, std::size_t panel, std::size_t inputs,
                         float* y, std::size_t y_stride, std::size_t outputs, bool begin,
                         const weights_ahead& ahead = {}) {
    // Columns of weights in registers while all rows pass: one, but where GCC would then keep so many broadcasts for
    // the next that the 32 registers of AVX-512 overflow.
    constexpr std::size_t columns_held = native_lanes == 16 && Rows * Panels + Rows + 1 > 32 ? Panels : 1;
    native_floats sums[Rows * Panels * native_parts]; // flat: GCC 12 keeps no nested array in registers
    unrolled<Rows * Panels>([&](auto i) KVCACHE_INLINE {
        const std::size_t v = i % Panels * 16;
        f32x16 sum = f32x16::zero();
        if (!begin && v < outputs)
            sum = f32x16::load_up_to(y + i / Panels * y_stride + v, outputs - v);
        unrolled<native_parts>([&](auto part) KVCACHE_INLINE { sums[i * native_parts + part] = sum.part[part]; });
    });
    for (std::size_t r = 0; r < Rows; ++r) // those of the next tile
        prefetch_to_write(y, (Rows + r) * y_stride);
    const auto step = [&](std::size_t k) KVCACHE_INLINE {
        unrolled<Panels / columns_held>([&](auto group) KVCACHE_INLINE {
            native_floats columns[columns_held * native_parts];
            unrolled<columns_held>([&](auto p) KVCACHE_INLINE {
                f32x16 column = f32x16::load(w + (group * columns_held + p) * panel + k * 16);
                unrolled<native_parts>([&](auto part) KVCACHE_INLINE {
                    if constexpr (Rows > 1)
                        keep(column.part[part]);
                    columns[p * native_parts + part] = column.part[part];
                });
            });
            unrolled<Rows>([&](auto r) KVCACHE_INLINE {
                const native_floats a(x[r * x_stride + k]);
                unrolled<columns_held * native_parts>([&](auto c) KVCACHE_INLINE {
                    native_floats& sum = sums[(r * Panels + group * columns_held) * native_parts + c];
                    sum = fused(a, columns[c], sum);
                });
            });
        });
    };
    std::size_t k = 0;
    if constexpr (native_lanes == 16) { // flat: a loop of 16 inside costs a misprediction in 16 inputs
        for (; k < ahead.lines; ++k) {
            for (std::size_t p = 0; p < Panels; ++p)
                prefetch_soon(ahead.base, ahead.at + p * ahead.panel + k * line_bytes);
            step(k);
        }
    } else {
        const std::size_t lines = inputs < 16 ? 0 : ahead.lines / (inputs / 16); // while 16 inputs run
        for (; k + 16 <= inputs; k += 16) {
            if constexpr (Rows > 3)
                for (std::size_t r = 0; r < Rows; ++r)
                    prefetch(x, (Rows + r) * x_stride + k);
            for (std::size_t line = 0; line < lines; ++line)
                for (std::size_t p = 0; p < Panels; ++p)
                    prefetch_soon(ahead.base, ahead.at + p * ahead.panel + (k / 16 * lines + line) * line_bytes);
            for (std::size_t i = 0; i < 16; ++i)
                step(k + i);
        }
    }
    for (; k < inputs; ++k)
        step(k);
    unrolled<Rows * Panels>([&](auto i) KVCACHE_INLINE {
        const std::size_t v = i % Panels * 16;
        f32x16 sum;
        unrolled<native_parts>([&](auto part) KVCACHE_INLINE { sum.part[part] = sums[i * native_parts + part]; });
        if (v < outputs)
            sum.store_up_to(y + i / Panels * y_stride + v, outputs - v);
    });
}

// Calls body<N>() for the N in [1, Most] that `n` is.
template <std::size_t Most, class Body>
inline void with_rows(std::size_t n, Body body) {
    if constexpr (Most > 1)
        if (n < Most)
            return with_rows<Most - 1>(n, body);
    body.template operator()<Most>();
}

// The product of some rows with some panels of weights.
template <weight_format Weight>
class product_block {
public:
    product_block(const rows_in& x, const packed_matrix<Weight>& w, const rows_out& y) : x_(x), w_(w), y_(y) {}

    // Few rows: each weight is read once, by tiles as wide as the registers allow.
    void run_few(std::size_t panel, std::size_t last) const {
        with_rows<tallest_tile>(x_.rows, [&]<std::size_t Rows> { run_few<Rows, panels_at_once(Rows)>(panel, last); });
    }

    // Many rows: a block of inputs at a time, whose weights meet all rows.
    void run_many(std::size_t row, std::size_t last_row, std::size_t panel, std::size_t last) const {
        // One block at least: without inputs it writes the zeros.
        const std::size_t blocks = std::max<std::size_t>(1, (w_.inputs() + block_inputs - 1) / block_inputs);
        for (std::size_t b = 0; b < blocks; ++b) {
            const std::size_t k = w_.inputs() * b / blocks, inputs = w_.inputs() * (b + 1) / blocks - k;
            for (std::size_t p = panel; p < last; p += strip)
                run_strip(row, last_row, p, std::min(strip, last - p), k, inputs,
                          p + 2 * strip <= last ? w_.panel(p + strip) + k * width : nullptr);
        }
    }

private:
    static constexpr std::size_t width = packed_matrix<Weight>::panel_width;
    static constexpr std::size_t strip = tile_panels;

    // So many panels at a time, then the rest by fewer.
    template <std::size_t Rows, std::size_t Panels>
    void run_few(std::size_t panel, std::size_t last) const {
        for (; panel + Panels <= last; panel += Panels)
            product_tile<Rows, Panels>(x_.data, x_.stride, w_.panel(panel), w_.inputs() * width, w_.inputs(),
                                       y_.data + panel * width, y_.stride, w_.outputs() - panel * width, true);
        if constexpr (Panels > 1)
            if (panel < last)
                run_few<Rows, Panels / 2>(panel, last);
    }

    // BF16 and F16 weights are widened once for all rows. `soon`: the weights of the strip behind, or null.
    void run_strip(std::size_t row, std::size_t last_row, std::size_t panel, std::size_t panels, std::size_t k,
                   std::size_t inputs, const Weight* soon) const {
        const Weight* from = w_.panel(panel) + k * width;
        if constexpr (std::same_as<Weight, float>) {
            run_tiles(row, last_row, panel, panels, k, inputs, from, w_.inputs() * width, soon);
        } else {
            alignas(line_bytes) float wide[strip * block_inputs * width];
            for (std::size_t p = 0; p < panels; ++p)
                for (std::size_t i = 0; i < inputs * width; i += 16)
                    f32x16::load(from + p * w_.inputs() * width + i).store(wide + p * block_inputs * width + i);
            run_tiles(row, last_row, panel, panels, k, inputs, wide, block_inputs * width, soon);
        }
    }

    // The rows in tiles as equal as they can be: a short last tile would starve the pipes.
    void run_tiles(std::size_t row, std::size_t last_row, std::size_t panel, std::size_t panels, std::size_t k,
                   std::size_t inputs, const float* weights, std::size_t next, const Weight* soon) const {
        std::size_t tiles = (last_row - row + tile_rows - 1) / tile_rows;
        const std::size_t lines = inputs * width * sizeof(Weight) / line_bytes; // of a panel
        const std::size_t rounded = (4 * sizeof(Weight) + tiles - 1) / tiles * (inputs / 16);
        weights_ahead ahead{reinterpret_cast<const std::byte*>(soon), 0, w_.inputs() * width * sizeof(Weight), 0};
        for (; tiles > 0; --tiles) {
            const std::size_t rows = (last_row - row + tiles - 1) / tiles, output = panel * width;
            if (soon != nullptr) // of no more lines than there are inputs, where each input asks for one
                ahead.lines = native_lanes == 16 ? std::min((lines - ahead.at / line_bytes + tiles - 1) / tiles, inputs)
                                                 : rounded;
            const float* x = x_.data + row * x_.stride + k;
            float* y = y_.data + row * y_.stride + output;
            with_rows<tile_rows>(rows, [&]<std::size_t Rows> {
                with_rows<strip>(panels, [&]<std::size_t Panels> {
                    product_tile<Rows, Panels>(x, x_.stride, weights, next, inputs, y, y_.stride, w_.outputs() - output,
                                               k == 0, ahead);
                });
            });
            row += rows;
            ahead.at += ahead.lines * line_bytes;
        }
    }

    const rows_in& x_;
    const packed_matrix<Weight>& w_;
    const rows_out& y_;
};

} // namespace detail

/// y = x W^T for packed weights. (rows, inputs) x (outputs, inputs) -> (rows, outputs)
/// Each output is one chain of fused multiply-adds over ascending inputs, so its bits depend neither on the number of
/// rows nor on threads nor on the vector width. Tiles follow Goto & van de Geijn 2008: weights in the first cache, rows
/// in the second. Cost: rows * inputs * outputs multiply-adds, near the machine's peak from some tens of rows on; few
/// rows cost the reading of the weights.
template <weight_format Weight>
KVCACHE_ONCE void product(const rows_in& x, const packed_matrix<Weight>& w, const rows_out& y, team& threads) {
    const detail::product_block<Weight> block(x, w, y);
    const std::size_t work = x.rows * w.inputs() * w.outputs();
    if (x.rows == 0)
        return;
    if (x.rows <= detail::tallest_tile) {
        const std::size_t wide = detail::panels_at_once(x.rows);
        threads.share((w.panels() + wide - 1) / wide, work, [&](std::size_t begin, std::size_t end) {
            block.run_few(begin * wide, std::min(end * wide, w.panels()));
        });
        return;
    }
    const std::size_t row_blocks = (x.rows + detail::block_rows - 1) / detail::block_rows;
    const auto block_at = [&](std::size_t b) { // whole tiles: short ones starve the pipes
        return std::min(x.rows,
                        (x.rows * b / row_blocks + detail::tile_rows - 1) / detail::tile_rows * detail::tile_rows);
    };
    threads.share(row_blocks * w.panels(), work, [&](std::size_t begin, std::size_t end) {
        while (begin < end) {
            const std::size_t b = begin / w.panels(), panel = begin % w.panels();
            const std::size_t panels = std::min(end - begin, w.panels() - panel);
            block.run_many(block_at(b), block_at(b + 1), panel, panel + panels);
            begin += panels;
        }
    });
}

#if defined(KVCACHE_COMPILED)
extern template void product(const rows_in&, const packed_matrix<float>&, const rows_out&, team&);
extern template void product(const rows_in&, const packed_matrix<bfloat16>&, const rows_out&, team&);
extern template void product(const rows_in&, const packed_matrix<half>&, const rows_out&, team&);
#endif

} // namespace kvcache
