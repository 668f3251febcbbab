// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/prefetch.hpp>
#include <kvcache/kernel/int8_dot.hpp>
#include <kvcache/kernel/int8_matrix.hpp>
#include <kvcache/kernel/math.hpp>
#include <kvcache/kernel/product_tile.hpp>
#include <kvcache/kernel/strided_rows.hpp>
#include <kvcache/kernel/team.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvcache {

/// Activations as int8 with one scale a row, made anew for each product; keeps its memory for the next one.
class int8_rows {
public:
    /// Takes in rows: x = q * scale, |q| <= 127, rounded to the nearest, ties to even. A row of zeros, or of numbers
    /// too small to divide by, has no levels but zero; one with a number that is not finite has the scale NaN besides.
    /// (rows, inputs) Cost: every number is read twice.
    void quantize(const rows_in& x, std::size_t inputs, team& threads) {
        stride_ = (inputs + 3) / 4 * 4 + line_bytes / sizeof(number); // rows begin on lines of different sets
        if (numbers_.size() < x.rows * stride_)
            numbers_ = aligned_vector<number>(x.rows * stride_);
        if (scales_.size() < x.rows)
            scales_ = aligned_vector<float>(x.rows);
        threads.share(x.rows, x.rows * inputs * 4, [&](std::size_t begin, std::size_t end) {
            for (std::size_t row = begin; row < end; ++row)
                quantize_row(x.data + row * x.stride, inputs, row);
        });
    }

    /// Behind the last input up to four zeros. (inputs)
    [[nodiscard]] const detail::int8_activation* row(std::size_t i) const noexcept {
        return numbers_.data() + i * stride_;
    }
    /// Numbers from one row to the next.
    [[nodiscard]] std::size_t stride() const noexcept { return stride_; }
    [[nodiscard]] float scale(std::size_t i) const noexcept { return scales_[i]; }

private:
    using number = detail::int8_activation;

    void quantize_row(const float* x, std::size_t inputs, std::size_t row) {
        f32x16 top = f32x16::zero(), poison = f32x16::zero(); // NaN from a number on that is not finite: max loses it
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

    std::size_t stride_ = 0;
    aligned_vector<number> numbers_;
    aligned_vector<float> scales_;
};

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

} // namespace detail

/// y = x W^T with int8 weights and activations. (rows, inputs) x (outputs, inputs) -> (rows, outputs)
/// Sums are exact integers and each output is rounded once and scaled, so its bits depend neither on the number of rows
/// nor on threads nor on the machine (weights a channel and activations a token: Yao et al. 2022, ZeroQuant).
/// `scratch` takes the rows as int8.
inline void product(const rows_in& x, const int8_matrix& w, const rows_out& y, team& threads, int8_rows& scratch) {
    if (x.rows == 0)
        return;
    scratch.quantize(x, w.inputs(), threads);
    if (x.rows == 1)
        detail::int8_blocks<1, detail::int8_panels_of_one>(scratch, 1, w, y, threads);
    else
        detail::int8_blocks<detail::int8_rows_together, detail::int8_panels_together>(scratch, x.rows, w, y, threads);
}

} // namespace kvcache
