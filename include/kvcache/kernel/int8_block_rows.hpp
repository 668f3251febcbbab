// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/zeroed_memory.hpp>
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
            alignas(64) float each[block] = {};
            const float scale = quantize_block(x + k, each);
            std::int32_t half_sums[2] = {};
            for (std::size_t i = 0; i < block; i += 4, levels += 4 * rows)
                for (std::size_t j = 0; j < 4; ++j) {
                    levels[j] = static_cast<std::int8_t>(each[i + j]);
                    half_sums[i / 16] += levels[j];
                }
            scales_[at] = scale;
            of_32_.set(at, half_sums[0] + half_sums[1], scale);
            for (std::size_t half = 0; half < 2; ++half)
                of_16_.set(2 * (at - r) + half * rows + r, half_sums[half], scale);
        }
    }

    // Writes the levels of a block, if it has any. Returns: its scale.
    static float quantize_block(const float* x, float* levels) {
        const f32x16 a = f32x16::load(x), b = f32x16::load(x + 16), zero = f32x16::zero();
        const f32x16 top = max(max(a, -a), max(b, -b));
        const float most = largest(max(top, zero)) + sum(fma(a, zero, b * zero)); // NaN after infinities and NaN
        const float level_of_one = 127.0f / most;
        if (!std::isfinite(level_of_one))
            return most / 127.0f;
        const f32x16 one = f32x16::broadcast(level_of_one);
        const f32x16 magic = f32x16::broadcast(12582912.0f); // 1.5 * 2^23: adding it rounds to an integer
        (fma(a, one, magic) - magic).store(levels);
        (fma(b, one, magic) - magic).store(levels + 16);
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

}} // namespace kvcache
