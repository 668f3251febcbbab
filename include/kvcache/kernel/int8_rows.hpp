// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/zeroed_memory.hpp>
#include <kvcache/kernel/int8_dot.hpp>
#include <kvcache/kernel/int8_words.hpp>
#include <kvcache/kernel/math.hpp>
#include <kvcache/kernel/strided_rows.hpp>
#include <kvcache/kernel/thread_pool.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>

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

}} // namespace kvcache
