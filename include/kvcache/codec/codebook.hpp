// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/quantized_pages.hpp>
#include <kvcache/codec/token_coder.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/kernel/hadamard.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

namespace kvcache { inline namespace KVCACHE_ABI { namespace codec {

namespace detail {

/// Quantization levels of the standard normal distribution with the smallest mean squared error (Max 1960, table 1,
/// recomputed). The levels are integers times a unit in standard deviations. Rounding them to integers adds 0.2 % to
/// the error with 4 bits, 0.04 % with 3 and nothing with 2. Levels differ by at most `widest_table`. Both signs,
/// ascending. With 5 bits the table has the positive levels; rounding adds 0.8 %.
template <unsigned Bits>
struct normal_levels;
template <>
struct normal_levels<2> {
    static constexpr float unit = 1.51035062f / 60.0f;
    static constexpr std::int8_t table[16] = {-60, -18, 18, 60};
};
template <>
struct normal_levels<3> {
    static constexpr float unit = 2.14745705f / 62.0f;
    static constexpr std::int8_t table[16] = {-62, -39, -22, -7, 7, 22, 39, 62};
};
template <>
struct normal_levels<4> {
    static constexpr float unit = 2.733f / 61.0f;
    static constexpr std::int8_t table[16] = {-61, -46, -36, -28, -21, -15, -9, -3, 3, 9, 15, 21, 28, 36, 46, 61};
};
template <>
struct normal_levels<5> {
    static constexpr float unit = 3.26230597f / 124.0f;
    static constexpr std::int8_t table[16] = {3, 8, 13, 18, 23, 28, 34, 40, 46, 53, 60, 68, 77, 88, 102, 124};
};

/// Quantizer to the nearest level, where the root mean square of a row is one standard deviation.
template <unsigned Bits>
struct codebook_quantizer {
    static constexpr unsigned bits = Bits;
    static constexpr const std::int8_t (&table)[16] = normal_levels<Bits>::table;
    std::size_t group = 0;

    [[nodiscard]] std::string name() const { return "codebook of " + std::to_string(Bits) + " bits, byte queries"; }
    template <class Strips>
    [[nodiscard]] f32x16 scale(const Strips& strips, std::size_t first, std::size_t last) const noexcept {
        f32x16 squares = f32x16::zero();
        for (std::size_t d = first; d < last; ++d) {
            const f32x16 x = strips(d);
            squares = fma(x, x, squares);
        }
        alignas(64) float each[tile_tokens];
        (squares / f32x16::broadcast(static_cast<float>(last - first))).store(each);
        for (float& size : each)
            size = std::sqrt(size) * normal_levels<Bits>::unit;
        return f32x16::load(each);
    }
    [[nodiscard]] f32x16 code(const f32x16& x) const noexcept {
        const f32x16 one = f32x16::broadcast(1.0f), size = Bits == 5 ? max(x, -x) : x;
        f32x16 place = f32x16::zero();
        if constexpr (Bits == 5) // the sign; that of a subnormal number counts as positive
            place = zero_below(f32x16::broadcast(16.0f), -x, std::numeric_limits<float>::min());
        for (std::size_t i = 0; i + 1 < std::size_t{1} << std::min(Bits, 4u); ++i) // one for each midpoint below
            place = place + zero_below(one, size, static_cast<float>(table[i] + table[i + 1]) * 0.5f);
        return place;
    }
};

/// Coder of rows that are transformed by fixed pseudo-random signs and a Hadamard matrix.
template <unsigned Bits>
class randomized_hadamard_coder : public token_coder<codebook_quantizer<Bits>> {
public:
    using token_coder<codebook_quantizer<Bits>>::token_coder;

    void transform(std::span<float> row) const noexcept {
        change_signs(row);
        hadamard(row);
    }
    void inverse_transform(std::span<float> row) const noexcept {
        hadamard(row);
        change_signs(row);
    }

private:
    // The sign is the upper bit of a multiplicative hash of the index: part of the page layout.
    static void change_signs(std::span<float> row) noexcept {
        for (std::size_t d = 0; d < row.size(); ++d) {
            std::uint64_t x = (d + 1) * 0x9E3779B97F4A7C15u;
            x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
            const auto sign = static_cast<std::uint32_t>(x >> 32) & 0x80000000u;
            row[d] = bit_cast<float>(bit_cast<std::uint32_t>(row[d]) ^ sign);
        }
    }
};

} // namespace detail

/// Quantizes each value to one of 4, 8, 16 or 32 levels that are optimal for the normal distribution, in units of the
/// row's root mean square. Fixed pseudo-random signs and a Hadamard matrix make the values of any row nearly normal.
/// Bits + 16 / head_dim bits a value. (Zandieh et al. 2025, TurboQuant; the variant for the mean squared error)
template <unsigned Bits = 4>
struct codebook {
    using role = codec_role;
    [[nodiscard]] auto coder(kv_kind side, page_shape shape) const {
        return detail::randomized_hadamard_coder<Bits>(detail::codebook_quantizer<Bits>{}, side, shape.head_dim);
    }
    [[nodiscard]] auto open(page_shape shape) const { return detail::open_sides(*this, *this, shape); }
};

static_assert(codec_policy<codebook<4>>);

}}} // namespace kvcache::codec
