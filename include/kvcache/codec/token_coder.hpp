// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/side_coder.hpp>
#include <kvcache/core/number_format.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace kvcache { inline namespace KVCACHE_ABI { namespace codec::detail {

/// Coder that quantizes each row by itself, in groups of adjacent values that share a scale. A value is an integer from
/// -127 to 127 times the scale: an int8 with 8 bits, or an index into a table with fewer; with 5 bits an index into a
/// table of magnitudes, and a sign. A tile is its codes, then the
/// scales as binary16, for 16 tokens of each group together:
///
///     [ codes, in the layout of packed_quants ][ scales: (groups, 16) ]
///
/// The quantizer (`Formula`) has `bits`, `name`, `group` (0: the whole row), `scale` of a group of rows, `code` of
/// values divided by the scale, and for fewer than 8 bits a `table`.
template <class Formula>
class token_coder {
    static constexpr unsigned bits = Formula::bits;

public:
    token_coder(const Formula& quantizer, kv_kind side, std::size_t head_dim)
        : quantizer_(quantizer),
          side_(side),
          head_dim_(head_dim),
          group_(quantizer.group == 0 ? head_dim : std::min(quantizer.group, head_dim)),
          groups_((head_dim + group_ - 1) / group_),
          codes_(side, head_dim) {}

    [[nodiscard]] std::size_t tokens() const noexcept { return tile_tokens; }
    [[nodiscard]] std::size_t bytes() const noexcept { return codes_.bytes() + groups_ * tile_tokens * sizeof(half); }
    [[nodiscard]] std::string name() const { return quantizer_.name(); }
    void transform(std::span<float>) const noexcept {}
    void inverse_transform(std::span<float>) const noexcept {}

    void encode(const float* from, std::byte* to) const noexcept {
        const tile_strips strips(side_, head_dim_, from);
        std::memset(to, 0, bytes());
        for (std::size_t g = 0; g < groups_; ++g) {
            const std::size_t first = g * group_, last = std::min(first + group_, head_dim_);
            alignas(64) float scales[tile_tokens], inverse[tile_tokens];
            quantizer_.scale(strips, first, last).store(scales);
            half* const kept = reinterpret_cast<half*>(to + codes_.bytes()) + g * tile_tokens;
            for (std::size_t lane = 0; lane < tile_tokens; ++lane) {
                kept[lane] = to_half(scales[lane]);
                const float scale = widen(kept[lane]);
                inverse[lane] = scale != 0.0f ? 1.0f / scale : 0.0f;
            }
            const f32x16 by = f32x16::load(inverse);
            for (std::size_t d = first; d < last; ++d) {
                alignas(64) float whole[tile_tokens];
                quantizer_.code(strips(d) * by).store(whole);
                for (std::size_t lane = 0; lane < tile_tokens; ++lane)
                    codes_.put(to, d, lane, static_cast<std::uint8_t>(static_cast<std::int32_t>(whole[lane])));
            }
        }
    }

    void decode(const std::byte* from, std::size_t, float* to) const noexcept {
        const auto quads = codes_.view(from, table());
        f32x16 four[4];
        if (side_ == kv_kind::keys) {
            for (std::size_t d = 0; d < head_dim_; d += 4) {
                numbers_of(quads, d / 4, four);
                for (std::size_t i = 0; i < 4 && d + i < head_dim_; ++i)
                    (four[i] * f32x16::load(scales_of(from, (d + i) / group_))).store(to + (d + i) * tile_tokens);
            }
            return;
        }
        const std::size_t width = padded_head_dim(head_dim_);
        for (std::size_t c = 0; c < width; c += 16) {
            alignas(64) float scales[tile_tokens];
            f32x16::load(scales_of(from, std::min(c / group_, groups_ - 1))).store(scales);
            for (std::size_t lane = 0; lane < tile_tokens; lane += 4) {
                numbers_of(quads, (c + lane) / 4, four);
                for (std::size_t i = 0; i < 4; ++i)
                    (four[i] * f32x16::broadcast(scales[lane + i])).store(to + (lane + i) * width + c);
            }
        }
    }

    /// Returns the operand that describes the encoded tile. Attention decodes tiles of 5 bits.
    [[nodiscard]] quantized_operand codes(const std::byte* from, std::size_t) const noexcept requires(bits != 5) {
        constexpr auto format = bits == 8   ? quant_format::int8
                                : bits == 4 ? quant_format::int4
                                : bits == 3 ? quant_format::int3
                                            : quant_format::int2;
        return {.format = format,
                .codes = from,
                .scales = scales_of(from, 0),
                .table = table(),
                .group = group_,
                .bytes = bytes()};
    }

private:
    [[nodiscard]] const half* scales_of(const std::byte* tile, std::size_t g) const noexcept {
        return reinterpret_cast<const half*>(tile + codes_.bytes()) + g * tile_tokens;
    }
    [[nodiscard]] static constexpr const std::int8_t* table() noexcept {
        if constexpr (bits == 8)
            return nullptr;
        else
            return Formula::table;
    }

    Formula quantizer_;
    kv_kind side_;
    std::size_t head_dim_;
    std::size_t group_;
    std::size_t groups_;
    packed_quants<bits> codes_;
};

/// Returns the largest magnitude among elements [first, last) of each row.
template <class Strips>
[[nodiscard]] f32x16 largest_size(const Strips& strips, std::size_t first, std::size_t last) noexcept {
    f32x16 most = f32x16::zero();
    for (std::size_t d = first; d < last; ++d) {
        const f32x16 x = strips(d);
        most = max(max(x, -x), most);
    }
    return most;
}

}}} // namespace kvcache::codec::detail
