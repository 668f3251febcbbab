// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/core/platform/machine.hpp>
#include <kvcache/kernel/block_codes.hpp>
#include <kvcache/kernel/block_matrix.hpp>
#include <kvcache/kernel/dot_codes.hpp>
#include <kvcache/kernel/gemm_microkernel.hpp>
#include <kvcache/kernel/simd.hpp>
#include <kvcache/kernel/strided_rows.hpp>
#include <kvcache/kernel/thread_pool.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Activations as int8 in blocks of 32, each with a scale: x = q * scale, |q| <= 127. Rows are in tiles; a tile has,
/// for each four inputs, those of all its rows. The memory is reused from one GEMM to the next.
class int8_block_rows {
public:
    static constexpr std::size_t block = 32;

    /// Rows of a tile: as many as have all their sums in registers.
    static constexpr std::size_t tile_rows = detail::native_lanes == 16 ? 12 : 3;

    /// Sums of the levels of 32 or of 16 adjacent inputs. (inputs / group, rows)
    struct group_sums {
        const std::int32_t* sums = nullptr;
        const float* scaled = nullptr; ///< Times the scale of the block.
    };

    /// Rows [row, row + rows), in the layout of a tile.
    struct tile {
        std::size_t row = 0;
        std::size_t rows = 0;
        const std::int8_t* levels = nullptr; ///< (inputs / 4, rows, 4)
        const float* scales = nullptr;       ///< (inputs / 32, rows)
        group_sums of_32 = {}, of_16 = {};
    };

    /// Quantizes rows, rounded to nearest, ties to even: q = x * (127 / most), scale = most / 127, where `most` is the
    /// largest |x| of the block. A block of zeros, or of values too small to divide by, has zero levels. A block with
    /// an infinite or NaN value has zero levels and the scale NaN. (rows, inputs) Requires: `inputs` is a multiple of
    /// 32. Cost: reads every value twice.
    void quantize(const rows_in& x, std::size_t inputs, thread_pool& threads) {
        inputs_ = inputs;
        rows_ = x.rows;
        tiles_ = (x.rows + tile_rows - 1) / tile_rows;
        grow(levels_, x.rows * inputs);
        grow(scales_, x.rows * inputs / block);
        for (sums* each : {&of_32_, &of_16_}) {
            grow(each->whole, x.rows * inputs / 16);
            grow(each->scaled, x.rows * inputs / 16);
        }
        threads.parallel_for(tiles_, x.rows * inputs * 4, [&](std::size_t begin, std::size_t end) {
            for (std::size_t t = begin; t < end; ++t) {
                const std::size_t first = row_of(t), rows = row_of(t + 1) - first;
                for (std::size_t r = 0; r < rows; ++r)
                    quantize_row(x.data + (first + r) * x.stride, first, rows, r);
            }
        });
    }

    [[nodiscard]] std::size_t tiles() const noexcept { return tiles_; }

    /// Tile `index`, from input `k` on. Requires: k is a multiple of 32.
    [[nodiscard]] tile at(std::size_t index, std::size_t k) const noexcept {
        const std::size_t first = row_of(index), rows = row_of(index + 1) - first;
        return {.row = first,
                .rows = rows,
                .levels = levels_.data() + first * inputs_ + k * rows,
                .scales = scales_.data() + (first * inputs_ + k * rows) / block,
                .of_32 = of_32_.at((first * inputs_ + k * rows) / 32),
                .of_16 = of_16_.at((first * inputs_ + k * rows) / 16)};
    }

private:
    template <class Number>
    static void grow(aligned_vector<Number>& numbers, std::size_t size) {
        if (numbers.size() < size)
            numbers = aligned_vector<Number>(size);
    }

    // Tiles are as equal as possible.
    [[nodiscard]] std::size_t row_of(std::size_t index) const noexcept { return rows_ * index / tiles_; }

    void quantize_row(const float* x, std::size_t first, std::size_t rows, std::size_t r) {
        std::int8_t* levels = levels_.data() + first * inputs_ + 4 * r;
        std::size_t at = first * inputs_ / block + r;
        for (std::size_t k = 0; k < inputs_; k += block, at += rows) {
            std::byte each[block] = {};
            std::int32_t half_sums[2] = {};
            const float scale = quantize_block(x + k, each, half_sums);
            for (std::size_t i = 0; i < block; i += 4, levels += 4 * rows)
                std::memcpy(levels, each + i, 4);
            scales_[at] = scale;
            of_32_.set(at, half_sums[0] + half_sums[1], scale);
            for (std::size_t half = 0; half < 2; ++half)
                of_16_.set(2 * (at - r) + half * rows + r, half_sums[half], scale);
        }
    }

    // Writes the levels of a block and the sums of its halves, if it has any. Returns: its scale.
    KVCACHE_INLINE static float quantize_block(const float* x, std::byte* levels, std::int32_t (&half_sums)[2]) {
        const f32x16 a = f32x16::load(x), b = f32x16::load(x + 16), zero = f32x16::zero();
        const f32x16 top = max(max(a, -a), max(b, -b));
        const float most = largest(max(top, zero)) + sum(fma(a, zero, b * zero)); // NaN after infinities and NaN
        const float level_of_one = 127.0f / most;
        if (!std::isfinite(level_of_one))
            return most / 127.0f;
        const f32x16 one = f32x16::broadcast(level_of_one);
        const f32x16 magic = f32x16::broadcast(12582912.0f); // 1.5 * 2^23: adding it rounds to an integer
        half_sums[0] = detail::quantize_int8(fma(a, one, magic) - magic, levels);
        half_sums[1] = detail::quantize_int8(fma(b, one, magic) - magic, levels + 16);
        return most / 127.0f;
    }

    struct sums {
        aligned_vector<std::int32_t> whole;
        aligned_vector<float> scaled;

        void set(std::size_t at, std::int32_t sum, float scale) {
            whole[at] = sum;
            scaled[at] = static_cast<float>(sum) * scale;
        }
        [[nodiscard]] group_sums at(std::size_t i) const noexcept { return {whole.data() + i, scaled.data() + i}; }
    };

    std::size_t inputs_ = 0, rows_ = 0, tiles_ = 0;
    aligned_vector<std::int8_t> levels_;
    aligned_vector<float> scales_;
    sums of_32_, of_16_;
};

namespace detail {

// Products of packed blocks with int8 activations. For each group of weights with one scale, by ascending inputs:
// y = fma(sum, scale * s, y), where `sum` is the exact integer sum of the products of levels, `scale` the exact scale
// of the weights, and s the scale of the activations; then, for formats with offsets, y = fma(offset, s * t, y), where
// t is the sum of the levels of the activations. This order is the same on every target and for every number of rows.

/// Inputs of a block, so that its unpacked panel stays in the L1 cache.
inline constexpr std::size_t unpacked_inputs = 640;

/// A block of inputs of a panel with its codes unpacked for add_dot().
struct unpacked_panel {
    alignas(64) std::byte operands[unpacked_inputs * 16]; // (inputs / 4, 16, 4)
    alignas(64) float scales[unpacked_inputs / 16 * 16];  // (groups, 16)
    alignas(64) float offsets[unpacked_inputs / 16 * 16]; // (groups, 16)
};

/// Unpacks the inputs [k, k + inputs) of a panel. Requires: both are multiples of 32, and `inputs` at most
/// unpacked_inputs.
template <block_format Format>
void unpack_panel(const std::byte* panel, std::size_t k, std::size_t inputs, unpacked_panel& to) {
    constexpr block_layout layout = layout_of(Format);
    std::byte* operands = to.operands;
    float *scale = to.scales, *offset = to.offsets;
    for (const std::size_t end = k + inputs; k < end; k += 32) {
        const std::byte* block = panel + k / layout.weights() * layout.packed_bytes();
        const std::size_t index = k % layout.weights() / 32;
        const std::byte* codes = block + layout.head_bytes() + index * layout.step_bytes();
        KVCACHE_UNROLL for (std::size_t quad = 0; quad < 8; ++quad) {
            KVCACHE_UNROLL for (std::size_t part = 0; part < native_parts; ++part) {
                const code_quad four = operands_of<Format>(codes_of<Format>(codes, quad, part));
                std::memcpy(operands + part * sizeof four, &four, sizeof four);
            }
            operands += 64;
        }
        const block_scales<Format> scales(block);
        for (std::size_t g = 0; g < 32 / layout.group; ++g, scale += 16, offset += 16) {
            const group_scales by = scales.group(index * 32 / layout.group + g);
            by.scale.store(scale);
            if constexpr (layout.offset)
                by.offset.store(offset);
        }
    }
}

/// Initial values of the integer sums of a tile: the sums of its activations times -zero_of_operands(). (groups, rows)
class sums_begin {
public:
    void set(const std::int32_t* sums, std::size_t count, std::int32_t zero) noexcept {
        if (zero == 0) {
            if (zero_ != 0 || count > zeros_)
                std::fill_n(numbers_, zeros_ = count, 0);
        } else {
            for (std::size_t i = 0; i < count; ++i)
                numbers_[i] = -zero * sums[i];
            zeros_ = 0;
        }
        zero_ = zero;
    }
    [[nodiscard]] const std::int32_t* data() const noexcept { return numbers_; }

private:
    std::size_t zeros_ = 0;
    std::int32_t zero_ = 0;
    alignas(64) std::int32_t numbers_[unpacked_inputs / 16 * int8_block_rows::tile_rows];
};

/// Products of the first `inputs` of a tile of Rows rows with an unpacked panel, written to y or added. Every 32
/// inputs it prefetches `ahead.times` times, without gaps. y: (Rows, outputs)
template <std::size_t Rows, std::size_t Group, bool Offset>
// NOLINTNEXTLINE(readability-function-size): it is called for each register tile, as packed_microkernel() is.
KVCACHE_NOINLINE void multiply_tile(const int8_block_rows::tile& x, const std::int32_t* begin, const unpacked_panel& w,
                                    std::size_t inputs, const rows_out& y, std::size_t outputs, bool first,
                                    bytes_ahead ahead) {
    constexpr std::size_t vectors = Rows * native_parts;
    tile_sums<Rows, 1> totals;
    begin_sums<Rows, 1>(totals, y.data, y.stride, outputs, first);
    const std::int8_t* levels = x.levels;
    const std::byte* operands = w.operands;
    const float *scale = w.scales, *offset = w.offsets, *scale_of_row = x.scales;
    const float* sum_of_row = Group == 32 ? x.of_32.scaled : x.of_16.scaled;
    for (std::size_t k = 0; k < inputs; k += 32, scale_of_row += Rows) {
        for (std::size_t n = 0; n < ahead.times; ++n, ahead.at += ahead.step)
            prefetch_soon(static_cast<const std::byte*>(ahead.base), ahead.at);
        KVCACHE_UNROLL for (std::size_t g = 0; g < 32 / Group; ++g) {
            dot_sums sums[vectors];
            KVCACHE_UNROLL for (std::size_t v = 0; v < vectors; ++v) sums[v] = dot_sums{} + begin[v / native_parts];
            KVCACHE_UNROLL for (std::size_t quad = 0; quad < Group / 4; ++quad) {
                code_quad four[native_parts];
                KVCACHE_UNROLL for (std::size_t part = 0; part < native_parts; ++part) four[part] =
                    load_quad(operands + part * sizeof(code_quad));
                KVCACHE_UNROLL for (std::size_t v = 0; v < vectors; ++v)
                    add_dot(sums[v], four[v % native_parts], levels + v / native_parts * 4);
                operands += 64;
                levels += 4 * Rows;
                keep(operands), keep(levels);
            }
            const f32x16 by = f32x16::load(scale);
            KVCACHE_UNROLL for (std::size_t v = 0; v < vectors; ++v) {
                const native_floats both = by.part[v % native_parts] * native_floats(scale_of_row[v / native_parts]);
                totals[v] = fused(floats_of(sums[v]), both, totals[v]);
            }
            if constexpr (Offset) {
                const f32x16 shift = f32x16::load(offset);
                KVCACHE_UNROLL for (std::size_t v = 0; v < vectors; ++v) totals[v] =
                    fused(shift.part[v % native_parts], native_floats(sum_of_row[v / native_parts]), totals[v]);
            }
            scale += 16, offset += 16, begin += Rows, sum_of_row += Rows;
            keep(scale), keep(offset), keep(begin), keep(sum_of_row);
        }
    }
    end_sums<Rows, 1>(totals, y.data, y.stride, outputs);
}

/// Products of one row with a strip of row_panels panels. y: (last - first) of the strip
template <block_format Format>
void multiply_int8_row(const int8_block_rows::tile& x, const block_strip& strip, std::size_t inputs, float* y) {
    constexpr block_layout layout = layout_of(Format);
    constexpr std::size_t vectors = row_panels * native_parts, group = layout.group;
    tile_sums<1, row_panels> totals;
    KVCACHE_UNROLL for (std::size_t v = 0; v < vectors; ++v) totals[v] = native_floats(0.0f);
    const std::byte* block = strip.data;
    const std::size_t next = strip.panel_bytes;
    const std::size_t ahead = row_panels * next < most_panels_ahead ? row_panels * next : panel_ahead;
    const int8_block_rows::group_sums of = group == 32 ? x.of_32 : x.of_16;
    for (std::size_t k = 0; k < inputs; k += layout.weights(), block += layout.packed_bytes()) {
        for (std::size_t step = 0; step < layout.weights() / 32; ++step) {
            const std::byte* codes = block + layout.head_bytes() + step * layout.step_bytes();
            const std::int8_t* levels = x.levels + k + step * 32;
            const native_floats row_scale(x.scales[k / 32 + step]);
            KVCACHE_UNROLL for (std::size_t g = 0; g < 32 / group; ++g) {
                const std::size_t index = (k + step * 32) / group + g;
                dot_sums sums[vectors];
                KVCACHE_UNROLL for (std::size_t v = 0; v < vectors; ++v) sums[v] =
                    dot_sums{} - zero_of_operands(layout) * of.sums[index];
                KVCACHE_UNROLL for (std::size_t i = 0; i < group / 4; ++i) {
                    const std::size_t quad = g * group / 4 + i;
                    KVCACHE_UNROLL for (std::size_t v = 0; v < vectors; ++v) {
                        const auto four = codes_of<Format>(codes + v / native_parts * next, quad, v % native_parts);
                        add_dot(sums[v], operands_of<Format>(four), levels + quad * 4);
                    }
                }
                const native_floats row_sum(of.scaled[index]);
                KVCACHE_UNROLL for (std::size_t p = 0; p < row_panels; ++p) {
                    const group_scales by = block_scales<Format>(block + p * next).group(step * 32 / group + g);
                    KVCACHE_UNROLL for (std::size_t part = 0; part < native_parts; ++part) {
                        native_floats& total = totals[p * native_parts + part];
                        total = fused(floats_of(sums[p * native_parts + part]), by.scale.part[part] * row_scale, total);
                        if constexpr (layout.offset)
                            total = fused(by.offset.part[part], row_sum, total);
                    }
                }
            }
            for (std::size_t p = 0; p < row_panels; ++p)
                for (std::size_t line = 0; line < layout.step_bytes(); line += 64)
                    prefetch_soon(codes + p * next, ahead + line);
        }
    }
    end_sums<1, row_panels>(totals, y, 0, strip.last - strip.first);
}

/// Panels that are unpacked together, so that the sums of a tile are prepared once for all of them.
inline constexpr std::size_t int8_strip_panels = 4;

/// Tiles of a block of rows, whose levels stay in the L2 cache.
inline constexpr std::size_t int8_block_tiles = 32;

/// Panels of a strip, unpacked for a block of inputs.
struct unpacked_strip {
    unpacked_panel panels[int8_strip_panels];
};

/// Products of a tile with the panels of an unpacked strip, for the inputs [k, k + inputs). The first tile prefetches
/// what the next strip has of them: few rows compute for no longer than that takes to arrive.
template <std::size_t Group, bool Offset>
void multiply_tile_with_strip(const int8_block_rows::tile& x, const unpacked_strip& w, const block_strip& strip,
                              row_range of_inputs, const rows_out& y, bool first_tile) {
    const std::size_t inputs = of_inputs.size();
    const block_layout layout = layout_of(strip.format);
    const std::size_t next =
        strip.panels * strip.panel_bytes + of_inputs.first / layout.weights() * layout.packed_bytes();
    const std::size_t times =
        first_tile ? (layout.packed_bytes() / (layout.weights() / 32) + line_bytes - 1) / line_bytes : 0;
    sums_begin begin;
    begin.set(Group == 32 ? x.of_32.sums : x.of_16.sums, inputs / Group * x.rows, zero_of_operands(layout));
    with_rows<int8_block_rows::tile_rows>(x.rows, [&]<std::size_t Rows> {
        for (std::size_t panel = 0; panel < strip.panels; ++panel) {
            const std::size_t output = strip.first + panel * 16;
            multiply_tile<Rows, Group, Offset>(
                x, begin.data(), w.panels[panel], inputs, {y.data + x.row * y.stride + output, y.stride},
                strip.last - output, of_inputs.first == 0,
                {.base = strip.data, .at = next + panel * strip.panel_bytes, .step = line_bytes, .times = times});
        }
    });
}

/// Products of some tiles with a strip of at most int8_strip_panels panels.
KVCACHE_LAZY inline void multiply_int8_strip(const int8_block_rows& x, row_range tiles, const block_strip& strip,
                                             std::size_t all, const rows_out& y) {
    const block_layout layout = layout_of(strip.format);
    unpacked_strip unpacked;
    for (std::size_t k = 0; k < all; k += unpacked_inputs) {
        const row_range inputs{k, std::min(k + unpacked_inputs, all)};
        with_format(strip.format, [&]<block_format Format> {
            for (std::size_t panel = 0; panel < strip.panels; ++panel)
                unpack_panel<Format>(strip.panel(panel), k, inputs.size(), unpacked.panels[panel]);
        });
        for (std::size_t t = tiles.first; t < tiles.last; ++t) {
            const int8_block_rows::tile tile = x.at(t, k);
            const bool first = t == tiles.first;
            if (layout.group == 32)
                layout.offset ? multiply_tile_with_strip<32, true>(tile, unpacked, strip, inputs, y, first)
                              : multiply_tile_with_strip<32, false>(tile, unpacked, strip, inputs, y, first);
            else
                layout.offset ? multiply_tile_with_strip<16, true>(tile, unpacked, strip, inputs, y, first)
                              : multiply_tile_with_strip<16, false>(tile, unpacked, strip, inputs, y, first);
        }
    }
}

/// Products of one row with some strips of row_panels panels. The last panels of a part, if they are fewer, are
/// unpacked.
KVCACHE_LAZY inline void multiply_int8_strips(const int8_block_rows& x, const block_matrix& w, std::size_t strip,
                                              std::size_t last, float* y) {
    const int8_block_rows::tile row = x.at(0, 0);
    for (; strip < last; ++strip) {
        const block_strip at = w.strip(strip, row_panels);
        if (at.panels < row_panels)
            multiply_int8_strip(x, {0, 1}, at, w.inputs(), {y, 0});
        else
            with_format(at.format,
                        [&]<block_format Format> { multiply_int8_row<Format>(row, at, w.inputs(), y + at.first); });
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
        threads.parallel_for_strided(w.strips(detail::row_panels), 1, work, [&](std::size_t begin, std::size_t end) {
            detail::multiply_int8_strips(scratch, w, begin, end, y.data);
        });
        return;
    }
    const std::size_t tiles = scratch.tiles(), strips = w.strips(detail::int8_strip_panels);
    const std::size_t blocks = (tiles + detail::int8_block_tiles - 1) / detail::int8_block_tiles;
    threads.parallel_for_strided(blocks * strips, 1, work, [&](std::size_t begin, std::size_t end) {
        for (std::size_t job = begin; job < end; ++job) {
            const std::size_t b = job / strips;
            const row_range of{tiles * b / blocks, tiles * (b + 1) / blocks};
            detail::multiply_int8_strip(scratch, of, w.strip(job % strips, detail::int8_strip_panels), w.inputs(), y);
        }
    });
}

#if KVCACHE_COMPILED
extern template void gemm<>(const rows_in&, const block_matrix&, const rows_out&, thread_pool&, int8_block_rows&);
#endif

}} // namespace kvcache
