// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/contract.hpp>
#include <kvcache/core/prefetch.hpp>
#include <kvcache/core/shared_memory.hpp>
#include <kvcache/core/zeroed_memory.hpp>
#include <kvcache/kernel/gemm_microkernel.hpp>
#include <kvcache/kernel/int8_dot.hpp>
#include <kvcache/kernel/int8_rows.hpp>
#include <kvcache/kernel/int8_words.hpp>
#include <kvcache/kernel/strided_rows.hpp>
#include <kvcache/kernel/thread_pool.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Weights of y = W x as int8 with one scale for each output: w = q * scale, |q| <= 127. Packed in panels of 16
/// outputs; a panel has its inputs in ascending groups of four, with 16 x 4 weights for each group, the layout of the
/// dot-product instructions of x86 (VNNI) and ARM. (outputs / 16, inputs / 4, 16, 4), padded with zeros. Copies share
/// the weights.
class int8_matrix {
public:
    static constexpr std::size_t panel_width = 16;
    static constexpr std::size_t most_inputs = 65536; ///< So that no int32 sum of byte products overflows.

    int8_matrix() = default;

    /// Bytes of a matrix with its scales and sums: a multiple of a cache line.
    [[nodiscard]] static constexpr std::size_t bytes_of(std::size_t outputs, std::size_t inputs) noexcept {
        return panels_of(outputs) * (panel_bytes_of(inputs) + panel_width * (sizeof(float) + sizeof(std::int32_t)));
    }

    /// A matrix of zeros in its own memory. Requires: inputs <= most_inputs.
    int8_matrix(std::size_t outputs, std::size_t inputs)
        : int8_matrix(outputs, inputs, shared_memory(bytes_of(outputs, inputs), nullptr)) {}

    /// A matrix of zeros in bytes_of() bytes that begin on a cache line; it keeps them alive. Small matrices in one
    /// allocation get huge pages, which separate allocations would not.
    int8_matrix(std::size_t outputs, std::size_t inputs, std::shared_ptr<std::byte> memory)
        : outputs_(outputs),
          inputs_(inputs),
          levels_(reinterpret_cast<std::int8_t*>(memory.get())),
          scales_(reinterpret_cast<float*>(levels_ + panels() * panel_bytes())),
          sums_(reinterpret_cast<std::int32_t*>(scales_ + panels() * panel_width)),
          memory_(std::move(memory)) {
        expects(inputs <= most_inputs, "an int8 matrix has at most 65536 inputs");
        expects(reinterpret_cast<std::uintptr_t>(memory_.get()) % line_bytes == 0,
                "packed weights begin on a cache line");
        std::memset(memory_.get(), 0, bytes());
    }

    /// Quantizes the weights of one output to the nearest of 255 levels, ties to even. (inputs) The error of a weight
    /// is at most half a step, max |weight| / 254. With an infinite or NaN weight the scale is NaN and every level
    /// zero. Several threads may set different outputs.
    void set_row(std::size_t output, std::span<const float> weights) {
        expects(output < outputs_ && weights.size() == inputs_, "a packed row is one output's weights");
        float largest = 0.0f;
        bool finite = true;
        for (const float w : weights) {
            largest = std::max(largest, std::fabs(w));
            finite = finite && std::isfinite(w);
        }
        const float scale = finite ? largest / 127.0f : std::numeric_limits<float>::quiet_NaN();
        std::int8_t* to = levels_ + output / panel_width * panel_bytes() + output % panel_width * inputs_together;
        std::int32_t sum = 0;
        for (std::size_t k = 0; k < inputs_; ++k) {
            const float level = scale > 0.0f ? std::nearbyint(weights[k] / scale) : 0.0f;
            const auto q = static_cast<std::int8_t>(std::clamp(level, -127.0f, 127.0f));
            to[k / inputs_together * panel_width * inputs_together + k % inputs_together] = q;
            sum += q;
        }
        scales_[output] = scale;
        sums_[output] = sum;
    }

    /// Dequantizes the weights of one output. (inputs)
    void row(std::size_t output, std::span<float> out) const {
        expects(output < outputs_ && out.size() == inputs_, "a packed row is one output's weights");
        const std::int8_t* from = panel(output / panel_width) + output % panel_width * inputs_together;
        for (std::size_t k = 0; k < inputs_; ++k)
            out[k] =
                static_cast<float>(from[k / inputs_together * panel_width * inputs_together + k % inputs_together]) *
                scales_[output];
    }

    [[nodiscard]] std::size_t outputs() const noexcept { return outputs_; }
    [[nodiscard]] std::size_t inputs() const noexcept { return inputs_; }
    [[nodiscard]] std::size_t panels() const noexcept { return panels_of(outputs_); }
    /// Groups of four inputs.
    [[nodiscard]] std::size_t fours() const noexcept { return fours_of(inputs_); }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_of(outputs_, inputs_); }

    /// Weights of outputs [16 * index, 16 * index + 16). (inputs / 4, 16, 4)
    [[nodiscard]] const std::int8_t* panel(std::size_t index) const noexcept { return levels_ + index * panel_bytes(); }
    /// Scales from output 16 * index on. (16)
    [[nodiscard]] const float* scales(std::size_t index) const noexcept { return scales_ + index * panel_width; }
    /// Sums of each output's levels, from output 16 * index on. (16)
    [[nodiscard]] const std::int32_t* sums(std::size_t index) const noexcept { return sums_ + index * panel_width; }

private:
    static constexpr std::size_t inputs_together = 4;

    [[nodiscard]] static constexpr std::size_t panels_of(std::size_t outputs) noexcept {
        return (outputs + panel_width - 1) / panel_width;
    }
    [[nodiscard]] static constexpr std::size_t fours_of(std::size_t inputs) noexcept {
        return (inputs + inputs_together - 1) / inputs_together;
    }
    [[nodiscard]] static constexpr std::size_t panel_bytes_of(std::size_t inputs) noexcept {
        return fours_of(inputs) * inputs_together * panel_width;
    }
    [[nodiscard]] std::size_t panel_bytes() const noexcept { return panel_bytes_of(inputs_); }

    std::size_t outputs_ = 0;
    std::size_t inputs_ = 0;
    std::int8_t* levels_ = nullptr; // (panels, fours, 16, 4), followed by:
    float* scales_ = nullptr;       // (panels, 16)
    std::int32_t* sums_ = nullptr;  // (panels, 16)
    std::shared_ptr<std::byte> memory_;
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
