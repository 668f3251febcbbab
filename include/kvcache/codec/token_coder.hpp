// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/code_strips.hpp>
#include <kvcache/kernel/number_format.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace kvcache::detail {

/// Codes each row by itself, in groups of neighbours that share a scale, by a formula. A tile is its codes, then the
/// scales as binary16, 16 tokens of each group together:
///
///     [ codes, as code_strips has them ][ scales: (groups, 16) ]
///
/// The formula says `bits`, `name`, `group` (0: the whole row), the scales that rows want, the codes of numbers that
/// were divided by the scale, and the numbers that codes stand for in units of the scale.
template <class Formula>
class token_coder {
public:
    token_coder(const Formula& formula, page_side side, std::size_t head_dim)
        : formula_(formula),
          side_(side),
          head_dim_(head_dim),
          group_(formula.group == 0 ? head_dim : std::min(formula.group, head_dim)),
          codes_(side, head_dim) {}

    [[nodiscard]] std::size_t tokens() const noexcept { return tile_tokens; }
    [[nodiscard]] std::size_t bytes() const noexcept { return codes_.bytes() + groups() * tile_tokens * sizeof(half); }
    [[nodiscard]] std::string name() const { return formula_.name(); }
    void turn(std::span<float>) const noexcept {}
    void turn_back(std::span<float>) const noexcept {}

    void encode(const float* from, std::byte* to) const noexcept {
        const tile_strips strips(side_, head_dim_, from);
        std::memset(to, 0, bytes());
        for (std::size_t g = 0; g < groups(); ++g) {
            const std::size_t first = g * group_, last = std::min(first + group_, head_dim_);
            alignas(64) float scales[tile_tokens], inverse[tile_tokens];
            formula_.scale(strips, first, last).store(scales);
            half* const kept = scales_of(to, g);
            for (std::size_t lane = 0; lane < tile_tokens; ++lane) {
                kept[lane] = to_half(scales[lane]);
                const float scale = widen(kept[lane]);
                inverse[lane] = scale != 0.0f ? 1.0f / scale : 0.0f;
            }
            const f32x16 by = f32x16::load(inverse);
            for (std::size_t d = first; d < last; ++d) {
                alignas(64) float codes[tile_tokens];
                formula_.code(strips(d) * by).store(codes);
                for (std::size_t lane = 0; lane < tile_tokens; ++lane)
                    codes_.put(to, d, lane, static_cast<std::uint8_t>(static_cast<std::int32_t>(codes[lane])));
            }
        }
    }

    void decode(const std::byte* from, std::size_t, float* to) const noexcept {
        if (side_ == page_side::keys)
            decode_keys(from, to);
        else
            decode_values(from, to);
    }

private:
    [[nodiscard]] std::size_t groups() const noexcept { return (head_dim_ + group_ - 1) / group_; }
    [[nodiscard]] half* scales_of(std::byte* tile, std::size_t g) const noexcept {
        return reinterpret_cast<half*>(tile + codes_.bytes()) + g * tile_tokens;
    }
    [[nodiscard]] const half* scales_of(const std::byte* tile, std::size_t g) const noexcept {
        return reinterpret_cast<const half*>(tile + codes_.bytes()) + g * tile_tokens;
    }

    void decode_keys(const std::byte* from, float* to) const noexcept {
        for (std::size_t g = 0; g < groups(); ++g) {
            const f32x16 scales = f32x16::load(scales_of(from, g));
            const std::size_t last = std::min((g + 1) * group_, head_dim_);
            for (std::size_t d = g * group_; d < last; ++d)
                (formula_.number(codes_.get(from, d)) * scales).store(to + d * tile_tokens);
        }
    }

    // Column by column, so that a column's scales are read once.
    void decode_values(const std::byte* from, float* to) const noexcept {
        const std::size_t columns = codes_.columns(), width = columns * 16;
        alignas(64) float scales[tile_tokens];
        for (std::size_t first = 0; first < columns;) {
            const std::size_t g = first * 16 / group_, last = std::min((g + 1) * group_ / 16, columns);
            f32x16::load(scales_of(from, std::min(g, groups() - 1))).store(scales);
            const std::size_t behind = std::max(last, first + 1);
            for (std::size_t lane = 0; lane < tile_tokens; ++lane) {
                const f32x16 scale = f32x16::broadcast(scales[lane]);
                for (std::size_t c = first; c < behind; ++c)
                    (formula_.number(codes_.get(from, lane * columns + c)) * scale).store(to + lane * width + c * 16);
            }
            first = behind;
        }
    }

    Formula formula_;
    page_side side_;
    std::size_t head_dim_;
    std::size_t group_;
    code_strips<Formula::bits> codes_;
};

/// The largest size among numbers [first, last) of each row.
template <class Strips>
[[nodiscard]] f32x16 largest_size(const Strips& strips, std::size_t first, std::size_t last) noexcept {
    f32x16 most = f32x16::zero();
    for (std::size_t d = first; d < last; ++d) {
        const f32x16 x = strips(d);
        most = max(max(x, -x), most);
    }
    return most;
}

} // namespace kvcache::detail
