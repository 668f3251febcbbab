// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/aligned.hpp>
#include <kvcache/core/compiled.hpp>
#include <kvcache/kernel/packed_matrix.hpp>
#include <kvcache/kernel/product_tile.hpp>
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

    // The same of rows packed before: the tile's inputs in the blocks in which they will meet weights.
    void pack_tile(std::size_t row, std::size_t last_row, std::size_t tile, float* packed) const {
        const row_tiles tiles(last_row - row);
        for (std::size_t b = 0; tile < tiles.count && b < packed_blocks(); ++b) {
            const std::size_t k = packed_input(b), inputs = packed_input(b + 1) - k;
            pack_rows(x_.data + (row + tiles.row(tile)) * x_.stride + k, x_.stride, tiles.rows(tile), inputs,
                      packed + (tiles.count * k + tile * inputs) * packed_rows);
        }
    }
    void run_packed(std::size_t row, std::size_t last_row, std::size_t panel, std::size_t last,
                    const float* packed) const {
        const row_tiles tiles(last_row - row);
        for (std::size_t b = 0; b < packed_blocks(); ++b) {
            const std::size_t k = packed_input(b), inputs = packed_input(b + 1) - k;
            for (std::size_t p = panel; p < last; p += strip)
                run_packed_strip(packed + tiles.count * packed_rows * k, row, tiles, p, k, inputs,
                                 p + 2 * strip <= last);
        }
        if (const std::size_t k = packed_input(packed_blocks()); k < w_.inputs()) // up to three are left
            for (std::size_t p = panel; p < last; p += strip)
                run_strip(row, last_row, p, std::min(strip, last - p), k, w_.inputs() - k, nullptr);
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

    // Blocks of inputs by fours.
    [[nodiscard]] std::size_t packed_blocks() const { return (w_.inputs() / 4 * 4 + block_inputs - 1) / block_inputs; }
    [[nodiscard]] std::size_t packed_input(std::size_t block) const {
        return w_.inputs() / 4 * block / packed_blocks() * 4;
    }

    // Rows in tiles as equal as they can be: a short last tile would starve the pipes.
    struct row_tiles {
        explicit row_tiles(std::size_t all)
            : count((all + tile_rows - 1) / tile_rows), least(all / count), taller(all % count) {}
        [[nodiscard]] std::size_t rows(std::size_t tile) const { return least + (tile < taller ? 1 : 0); }
        [[nodiscard]] std::size_t row(std::size_t tile) const { return least * tile + std::min(tile, taller); }

        std::size_t count, least, taller;
    };

    // Calls body(weights, next) with the weights of a strip in float32, `next` numbers from one panel to the next: BF16
    // and F16 weights are widened once for all rows.
    template <class Body>
    void with_wide(std::size_t panel, std::size_t panels, std::size_t k, std::size_t inputs, Body body) const {
        const Weight* from = w_.panel(panel) + k * width;
        if constexpr (std::same_as<Weight, float>) {
            body(from, w_.inputs() * width);
        } else {
            alignas(line_bytes) float wide[strip * block_inputs * width];
            for (std::size_t p = 0; p < panels; ++p)
                for (std::size_t i = 0; i < inputs * width; i += 16)
                    f32x16::load(from + p * w_.inputs() * width + i).store(wide + p * block_inputs * width + i);
            body(wide, block_inputs * width);
        }
    }

    // A strip whose successor in memory is the next to run, or not.
    void run_packed_strip(const float* packed, std::size_t row, const row_tiles& tiles, std::size_t panel,
                          std::size_t k, std::size_t inputs, bool more) const {
        const std::size_t panels = std::min(strip, w_.panels() - panel), output = panel * width;
        const std::size_t bytes = inputs * width * sizeof(Weight), next_panel = w_.inputs() * width * sizeof(Weight);
        const std::size_t tiles_each = (tiles.count + strip - 1) / strip; // fetch one panel of the next strip
        const std::size_t step = (bytes / tiles_each + inputs / 4) / (inputs / 4);
        with_wide(panel, panels, k, inputs, [&](const float* weights, std::size_t next) {
            for (std::size_t t = 0, soon = 0, part = 0; t < tiles.count; ++t) {
                bytes_ahead ahead{weights};
                if (more)
                    ahead = {w_.panel(panel + strip) + k * width, soon * next_panel + part * step * (inputs / 4), step};
                if (++part == tiles_each)
                    part = 0, ++soon;
                float* y = y_.data + (row + tiles.row(t)) * y_.stride + output;
                with_rows<tile_rows>(tiles.rows(t), [&]<std::size_t Rows> {
                    with_rows<strip>(panels, [&]<std::size_t Panels> {
                        packed_tile<Rows, Panels>(packed + t * inputs * packed_rows, weights, next, inputs, y,
                                                  y_.stride, w_.outputs() - output, k == 0, ahead);
                    });
                });
            }
        });
    }

    // `soon`: the weights of the strip behind, or null.
    void run_strip(std::size_t row, std::size_t last_row, std::size_t panel, std::size_t panels, std::size_t k,
                   std::size_t inputs, const Weight* soon) const {
        with_wide(panel, panels, k, inputs, [&](const float* weights, std::size_t next) {
            run_tiles(row, last_row, panel, panels, k, inputs, weights, next, soon);
        });
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
    if (detail::native_lanes == 16 && x.rows >= detail::worth_packing && w.inputs() >= 4) {
        // A block of rows at a time stays in the second cache; a team waits less often where it takes two.
        constexpr std::size_t tiles = detail::block_rows / detail::tile_rows;
        const std::size_t at_once = threads.threads() > 1 ? 2 : 1;
        const std::size_t strips = (w.panels() + detail::tile_panels - 1) / detail::tile_panels;
        const std::size_t room = w.inputs() * detail::block_rows; // of a block
        float* const packed = threads.scratch(std::min(at_once, row_blocks) * room);
        for (std::size_t first = 0; first < row_blocks; first += at_once) {
            const std::size_t blocks = std::min(at_once, row_blocks - first);
            threads.share(blocks * tiles, x.rows * w.inputs(), [&](std::size_t begin, std::size_t end) {
                for (std::size_t t = begin; t < end; ++t)
                    block.pack_tile(block_at(first + t / tiles), block_at(first + t / tiles + 1), t % tiles,
                                    packed + t / tiles * room);
            });
            threads.share(blocks * strips, work, [&](std::size_t begin, std::size_t end) {
                for (std::size_t last; begin < end; begin = last) {
                    const std::size_t b = begin / strips;
                    last = std::min(end, (b + 1) * strips);
                    block.run_packed(
                        block_at(first + b), block_at(first + b + 1), (begin - b * strips) * detail::tile_panels,
                        std::min((last - b * strips) * detail::tile_panels, w.panels()), packed + b * room);
                }
            });
        }
        return;
    }
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
