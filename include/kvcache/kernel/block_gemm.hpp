// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/platform/machine.hpp>
#include <kvcache/kernel/block_codes.hpp>
#include <kvcache/kernel/block_matrix.hpp>
#include <kvcache/kernel/gemm.hpp>
#include <kvcache/kernel/gemm_microkernel.hpp>
#include <kvcache/kernel/strided_rows.hpp>
#include <kvcache/kernel/thread_pool.hpp>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

// Weights of packed blocks as float32, in a buffer or in the chains of a single row.

/// A dequantised weight, exactly: scale * level is exact, so fusing the offset rounds once, as it must.
template <block_format Format>
[[nodiscard]] KVCACHE_INLINE inline native_floats weight_of(const native_floats& level, const native_floats& scale,
                                                            const native_floats& offset) noexcept {
    if constexpr (layout_of(Format).offset)
        return fused(scale, level, offset);
    else
        return scale * level;
}

/// Widens the inputs [k, k + inputs) of a panel: input by input, 16 outputs at to + i * step. Requires: k and `inputs`
/// are multiples of 32.
template <block_format Format>
void widen_panel(const std::byte* panel, std::size_t k, std::size_t inputs, float* to, std::size_t step) {
    constexpr block_layout layout = layout_of(Format);
    for (const std::size_t end = k + inputs; k < end; k += 32) {
        const std::byte* block = panel + k / layout.weights() * layout.packed_bytes();
        const std::size_t index = k % layout.weights() / 32;
        const std::byte* codes = block + layout.head_bytes() + index * layout.step_bytes();
        const block_scales<Format> scales(block);
        KVCACHE_UNROLL for (std::size_t half_step = 0; half_step < 2; ++half_step) {
            const group_scales by = scales.group((index * 32 + half_step * 16) / layout.group);
            KVCACHE_UNROLL for (std::size_t quad = half_step * 4; quad < half_step * 4 + 4; ++quad) {
                KVCACHE_UNROLL for (std::size_t part = 0; part < native_parts; ++part) {
                    const code_quad levels = levels_of<Format>(codes_of<Format>(codes, quad, part));
                    KVCACHE_UNROLL for (std::size_t i = 0; i < 4; ++i)
                        weight_of<Format>(level_of<Format>(levels, i), by.scale.part[part], by.offset.part[part])
                            .store_unaligned(to + i * step + part * native_lanes);
                }
                to += 4 * step;
            }
        }
    }
}

/// Weights of a group of inputs, for one row: the scales and offsets of Vectors vectors of outputs.
template <block_format Format, std::size_t Vectors>
class group_weights {
    static constexpr block_layout layout = layout_of(Format);

public:
    KVCACHE_INLINE void set(std::size_t v, const native_floats& scale, const native_floats& offset) noexcept {
        scale_[0][v] = scale;
        if constexpr (layout.offset)
            offset_[v] = offset;
        KVCACHE_UNROLL for (std::size_t i = 1; i < scales; ++i) scale_[i][v] = scale * native_floats(1.0f / place(i));
    }

    /// Codes of quad `quad` of a step of 32 inputs, of one part of the 16 outputs, in the form that at() takes.
    [[nodiscard]] KVCACHE_INLINE static code_quad four(const std::byte* step, std::size_t quad,
                                                       std::size_t part) noexcept {
        if constexpr (!in_place)
            return levels_of<Format>(codes_of<Format>(step, quad, part));
        keep(step); // otherwise GCC holds the bytes that adjacent quads share, and runs out of registers
        code_quad codes;
        if constexpr (layout.table == block_layout::values::linear && layout.high_bits == 0)
            codes = load_quad(step + quad * layout.low_bits / 8 * 64) >> quad * layout.low_bits % 8; // masked in at()
        else
            codes = raised_levels_of<Format>(codes_of<Format>(step, quad, part));
        keep(codes);
        return codes;
    }

    /// The weights of input `i` of four, of vector `v`.
    [[nodiscard]] KVCACHE_INLINE native_floats at(code_quad four, std::size_t v, std::size_t i) const noexcept {
#if defined(__AVX512BW__)
        if constexpr (in_place) {
            const auto raised = reinterpret_cast<__m512i>(four & mask << 8 * i);
            native_floats level(_mm512_cvtepu32_ps(raised));
            if constexpr (layout.zero > 0)
                level = level - native_floats(layout.zero * place(i));
            return weight_of<Format>(level, scale_[i][v], offset_[v]);
        }
#endif
        return weight_of<Format>(level_of<Format>(four, i), scale_[0][v], offset_[v]);
    }

private:
    // A byte is masked where it lies, and its place is a factor of the scale: (level * 2^8i) * (scale * 2^-8i) is
    // exact, since a scale that is not zero is at least 2^-24. Scales of MXFP4 are smaller. A shift or a shuffle would
    // compete with multiply-adds for their ports.
#if defined(__AVX512BW__)
    static constexpr bool in_place = layout.table != block_layout::values::mxfp4;
#else
    static constexpr bool in_place = false;
#endif
    static constexpr std::size_t scales = in_place ? 4 : 1;
    static constexpr std::uint32_t mask =
        layout.table == block_layout::values::linear ? (1u << (layout.low_bits + layout.high_bits)) - 1 : 255u;
    [[nodiscard]] static constexpr float place(std::size_t i) noexcept {
        return static_cast<float>(std::uint32_t{1} << 8 * i);
    }

    native_floats scale_[scales][Vectors], offset_[Vectors];
};

/// Product of one row with a strip of row_panels panels: each output one chain of fused multiply-adds over ascending
/// inputs. x: (inputs), y: (last - first) of the strip
template <block_format Format>
void multiply_row(const float* x, const block_strip& strip, std::size_t inputs, float* y) {
    constexpr block_layout layout = layout_of(Format);
    constexpr std::size_t vectors = row_panels * native_parts, quads = layout.group / 4;
    tile_sums<1, row_panels> sums;
    KVCACHE_UNROLL for (std::size_t v = 0; v < vectors; ++v) sums[v] = native_floats(0.0f);
    const std::byte* block = strip.data;
    const std::size_t next = strip.panel_bytes;
    const std::size_t ahead = row_panels * next < most_panels_ahead ? row_panels * next : panel_ahead;
    for (std::size_t k = 0; k < inputs; k += layout.weights(), block += layout.packed_bytes()) {
        for (std::size_t step = 0; step < layout.weights() / 32; ++step) {
            const std::byte* codes = block + layout.head_bytes() + step * layout.step_bytes();
            KVCACHE_UNROLL for (std::size_t g = 0; g < 8 / quads; ++g) {
                group_weights<Format, vectors> weights;
                KVCACHE_UNROLL for (std::size_t p = 0; p < row_panels; ++p) {
                    const group_scales by = block_scales<Format>(block + p * next).group(step * 8 / quads + g);
                    KVCACHE_UNROLL for (std::size_t part = 0; part < native_parts; ++part)
                        weights.set(p * native_parts + part, by.scale.part[part], by.offset.part[part]);
                }
                KVCACHE_UNROLL for (std::size_t quad = g * quads; quad < (g + 1) * quads; ++quad) {
                    code_quad four[vectors];
                    KVCACHE_UNROLL for (std::size_t v = 0; v < vectors; ++v) four[v] =
                        weights.four(codes + v / native_parts * next, quad, v % native_parts);
                    KVCACHE_UNROLL for (std::size_t i = 0; i < 4; ++i) {
                        const native_floats a(x[quad * 4 + i]);
                        KVCACHE_UNROLL for (std::size_t v = 0; v < vectors; ++v)
                            accumulate(sums[v], a, weights.at(four[v], v, i));
                    }
                }
            }
            for (std::size_t p = 0; p < row_panels; ++p)
                for (std::size_t line = 0; line < layout.step_bytes(); line += 64)
                    prefetch_soon(codes + p * next, ahead + line);
            x += 32;
        }
    }
    end_sums<1, row_panels>(sums, y, 0, strip.last - strip.first);
}

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

/// Products of few rows with a strip of at most Wide panels, which is widened once, in pieces that stay in the L1
/// cache.
template <std::size_t Rows, std::size_t Wide>
void multiply_few(const rows_in& x, const block_strip& strip, std::size_t all, const rows_out& y) {
    constexpr std::size_t piece = native_lanes == 16 ? 96 : 256;
    alignas(line_bytes) float wide[piece * Wide * 16];
    for (std::size_t k = 0; k < all; k += piece) {
        const std::size_t inputs = std::min(piece, all - k);
        widen_strip(strip, k, inputs, wide);
        with_rows<Wide>(strip.panels, [&]<std::size_t Panels> {
            gemm_microkernel<Rows, 1, Panels>(x.data + k, x.stride, static_cast<const float*>(wide), 0, inputs,
                                              y.data + strip.first, y.stride, strip.last - strip.first, k == 0);
        });
    }
}

/// Products of one row with some strips of row_panels panels. The last panels of a part, if they are fewer, are
/// widened.
KVCACHE_LAZY inline void multiply_strips(const float* x, const block_matrix& w, std::size_t strip, std::size_t last,
                                         float* y) {
    for (; strip < last; ++strip) {
        const block_strip at = w.strip(strip, row_panels);
        if (at.panels < row_panels)
            multiply_few<1, row_panels>({x, 1, 0}, at, w.inputs(), {y, 0});
        else
            with_format(at.format, [&]<block_format Format> { multiply_row<Format>(x, at, w.inputs(), y + at.first); });
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
            detail::with_rows<detail::tallest_tile>(x.rows, [&]<std::size_t Rows> {
                for (std::size_t strip = begin; strip < end; ++strip)
                    detail::multiply_few<Rows, detail::strip_panels>(x, w.strip(strip, detail::strip_panels),
                                                                     w.inputs(), y);
            });
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
