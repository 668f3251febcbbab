// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/coded_pages.hpp>
#include <kvcache/codec/token_coder.hpp>
#include <kvcache/kernel/hadamard.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvcache {

namespace detail {

/// The levels that code numbers of a standard normal distribution with the least mean squared error, above zero; those
/// below are their mirror images. (Max 1960, table 1, recomputed to float32.)
template <unsigned Bits>
inline constexpr float normal_levels[1 << (Bits - 1)] = {};
template <>
inline constexpr float normal_levels<2>[2] = {0.45278003f, 1.51041761f};
template <>
inline constexpr float normal_levels<3>[4] = {0.24509418f, 0.75600528f, 1.34390928f, 2.15194570f};
template <>
inline constexpr float normal_levels<4>[8] = {0.12839503f, 0.38804830f, 0.65675912f, 0.94234046f,
                                              1.25623120f, 1.61804639f, 2.06901723f, 2.73258957f};

/// The nearest level of a row in units of its root mean square.
template <unsigned Bits>
struct codebook_formula {
    static constexpr unsigned bits = Bits;
    static constexpr std::size_t half_levels = std::size_t{1} << (Bits - 1);
    std::size_t group = 0;

    [[nodiscard]] std::string name() const { return "codebook of " + std::to_string(Bits) + " bits"; }
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
            size = std::sqrt(size);
        return f32x16::load(each);
    }
    [[nodiscard]] f32x16 code(const f32x16& x) const noexcept {
        const f32x16 one = f32x16::broadcast(1.0f);
        f32x16 place = f32x16::zero();
        for (std::size_t i = 0; i + 1 < 2 * half_levels; ++i)
            place = place + zero_below(one, x, (level(i) + level(i + 1)) * 0.5f);
        return place;
    }
    [[nodiscard]] f32x16 number(const code_bytes& codes) const noexcept { return codes.looked_up(table.levels); }

private:
    [[nodiscard]] static constexpr float level(std::size_t code) noexcept {
        return code < half_levels ? -normal_levels<Bits>[half_levels - 1 - code]
                                  : normal_levels<Bits>[code - half_levels];
    }
    struct levels_of {
        alignas(64) float levels[16] = {};
        constexpr levels_of() noexcept {
            for (std::size_t i = 0; i < 2 * half_levels; ++i)
                levels[i] = level(i);
        }
    };
    static constexpr levels_of table = {};
};

/// Codes rows whose signs a seeded draw and a Hadamard matrix have mixed.
template <unsigned Bits>
class mixing_coder : public token_coder<codebook_formula<Bits>> {
public:
    using token_coder<codebook_formula<Bits>>::token_coder;

    void turn(std::span<float> row) const noexcept {
        change_signs(row);
        hadamard(row);
    }
    void turn_back(std::span<float> row) const noexcept {
        hadamard(row);
        change_signs(row);
    }

private:
    // The upper bit of a multiplicative hash of the place: part of the page layout.
    static void change_signs(std::span<float> row) noexcept {
        for (std::size_t d = 0; d < row.size(); ++d) {
            std::uint64_t x = (d + 1) * 0x9E3779B97F4A7C15u;
            x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
            const auto sign = static_cast<std::uint32_t>(x >> 32) & 0x80000000u;
            row[d] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(row[d]) ^ sign);
        }
    }
};

} // namespace detail

/// Keeps rows as the nearest of 4, 8 or 16 levels that suit normal numbers best, in units of the row's root mean
/// square; signs drawn once and a Hadamard matrix make the numbers of any row nearly normal. Bits + 16 / head_dim bits
/// a number. (Zandieh et al. 2025, TurboQuant; its half for the mean squared error)
template <unsigned Bits = 4>
struct codebook {
    using role = codec_role;
    [[nodiscard]] auto coder(page_side side, page_shape shape) const {
        return detail::mixing_coder<Bits>(detail::codebook_formula<Bits>{}, side, shape.head_dim);
    }
    [[nodiscard]] auto open(page_shape shape) const { return detail::open_sides(*this, *this, shape); }
};

static_assert(codec_policy<codebook<4>>);

} // namespace kvcache
