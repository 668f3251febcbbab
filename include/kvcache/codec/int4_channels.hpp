// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/coded_pages.hpp>
#include <kvcache/codec/packed_codes.hpp>
#include <kvcache/kernel/number_format.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace kvcache {

namespace detail {

/// Codes each number of head_dim over 32 tokens: sixteen steps from their least to their largest. Two tiles are their
/// codes, then the steps and the least numbers as binary16:
///
///     [ codes of the first 16 tokens ][ of the next ][ steps: (value_width) ][ least: (value_width) ]
class channel_coder {
public:
    channel_coder(page_side side, std::size_t head_dim)
        : side_(side), head_dim_(head_dim), width_(value_width(head_dim)), codes_(side, head_dim) {}

    [[nodiscard]] std::size_t tokens() const noexcept { return 2 * tile_tokens; }
    [[nodiscard]] std::size_t bytes() const noexcept { return 2 * codes_.bytes() + 2 * width_ * sizeof(half); }
    [[nodiscard]] std::string name() const { return "int4 channels over 32 tokens"; }
    void turn(std::span<float>) const noexcept {}
    void turn_back(std::span<float>) const noexcept {}

    void encode(const float* from, std::byte* to) const noexcept {
        const tile_strips tiles[] = {{side_, head_dim_, from},
                                     {side_, head_dim_, from + tile_numbers(side_, head_dim_)}};
        std::memset(to, 0, bytes());
        auto* const steps = reinterpret_cast<half*>(to + 2 * codes_.bytes());
        for (std::size_t d = 0; d < head_dim_; ++d) {
            const f32x16 x[] = {tiles[0](d), tiles[1](d)};
            const float most = largest(max(x[0], x[1])), least = -largest(max(-x[0], -x[1]));
            const half kept = to_half(least), step = to_half((most - least) / 15.0f);
            steps[d] = step;
            steps[width_ + d] = kept;
            const float scale = widen(step);
            const f32x16 by = f32x16::broadcast(scale != 0.0f ? 1.0f / scale : 0.0f),
                         from_least = f32x16::broadcast(widen(kept));
            for (std::size_t t = 0; t < 2; ++t) {
                alignas(64) float codes[tile_tokens];
                rounded((x[t] - from_least) * by, 0.0f, 15.0f).store(codes);
                for (std::size_t lane = 0; lane < tile_tokens; ++lane)
                    codes_.put(to + t * codes_.bytes(), d, lane,
                               static_cast<std::uint8_t>(static_cast<std::int32_t>(codes[lane])));
            }
        }
    }

    void decode(const std::byte* from, std::size_t tile, float* to) const noexcept {
        const half* const steps = steps_of(from);
        const auto quads = codes_.view(from + tile * codes_.bytes(), table);
        f32x16 four[4];
        if (side_ == page_side::keys) {
            for (std::size_t d = 0; d < head_dim_; d += 4) {
                numbers_of(quads, d / 4, four);
                for (std::size_t i = 0; i < 4 && d + i < head_dim_; ++i)
                    fma(four[i], f32x16::broadcast(widen(steps[d + i])),
                        f32x16::broadcast(widen(steps[width_ + d + i])))
                        .store(to + (d + i) * tile_tokens);
            }
            return;
        }
        for (std::size_t c = 0; c < width_; c += 16) {
            const f32x16 step = f32x16::load(steps + c), least = f32x16::load(steps + width_ + c);
            for (std::size_t lane = 0; lane < tile_tokens; lane += 4) {
                numbers_of(quads, (c + lane) / 4, four);
                for (std::size_t i = 0; i < 4; ++i)
                    fma(four[i], step, least).store(to + (lane + i) * width_ + c);
            }
        }
    }

    /// Where a tile's codes lie.
    [[nodiscard]] side_codes codes(const std::byte* from, std::size_t tile) const noexcept {
        return {.format = code_format::channels,
                .codes = from + tile * codes_.bytes(),
                .scales = steps_of(from),
                .table = table,
                .bytes = bytes() / 2};
    }

private:
    static constexpr std::int8_t table[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

    [[nodiscard]] const half* steps_of(const std::byte* from) const noexcept {
        return reinterpret_cast<const half*>(from + 2 * codes_.bytes());
    }

    page_side side_;
    std::size_t head_dim_;
    std::size_t width_;
    packed_codes<4> codes_;
};

} // namespace detail

/// Keeps each channel in 4 bits over groups of 32 tokens, with a step and a least number: 5 bits a number. For keys,
/// whose large channels are large at every token; values want a scale a token: `split<int4_channels, int4>`. A page
/// holds a multiple of 32 tokens; a group that is not full yet is exact, as its page is. (Liu et al. 2024, KIVI)
struct int4_channels {
    using role = codec_role;
    [[nodiscard]] auto coder(page_side side, page_shape shape) const {
        return detail::channel_coder(side, shape.head_dim);
    }
    [[nodiscard]] auto open(page_shape shape) const { return detail::open_sides(*this, *this, shape); }
};

static_assert(codec_policy<int4_channels>);

} // namespace kvcache
