// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/quantized_pages.hpp>
#include <kvcache/codec/side_coder.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/number_format.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>

namespace kvcache { inline namespace KVCACHE_ABI { namespace codec {

namespace detail {

/// Coder of channels over some tiles of tokens: 16 levels a channel, at `minimum + code * step`. The first fit spans
/// the range from the smallest to the largest value. Two least-squares refits follow, each kept if its squared error is
/// smaller. The codes of the tiles come first, then the steps and the minima as binary16:
///
///     [ codes of the first 16 tokens ][ of the next ] ... [ steps: (padded_head_dim) ][ least: (padded_head_dim) ]
class channel_coder {
public:
    static constexpr std::size_t most_tiles = 8;

    channel_coder(kv_kind side, std::size_t head_dim, std::size_t tokens)
        : side_(side),
          head_dim_(head_dim),
          width_(padded_head_dim(head_dim)),
          tiles_(tokens / tile_tokens),
          codes_(side, head_dim) {}

    [[nodiscard]] std::size_t tokens() const noexcept { return tiles_ * tile_tokens; }
    [[nodiscard]] std::size_t bytes() const noexcept { return tiles_ * codes_.bytes() + 2 * width_ * sizeof(half); }
    [[nodiscard]] std::string name() const {
        return "int4 channels, fitted, over " + std::to_string(tokens()) + " tokens, byte queries";
    }
    void transform(std::span<float>) const noexcept {}
    void inverse_transform(std::span<float>) const noexcept {}

    void encode(const float* from, std::byte* to) const noexcept {
        std::memset(to, 0, bytes());
        auto* const steps = reinterpret_cast<half*>(to + tiles_ * codes_.bytes());
        for (std::size_t d = 0; d < head_dim_; ++d) {
            f32x16 x[most_tiles], most = f32x16::broadcast(-std::numeric_limits<float>::infinity()), least = -most;
            for (std::size_t t = 0; t < tiles_; ++t) {
                x[t] = tile_strips(side_, head_dim_, from + t * tile_numbers(side_, head_dim_))(d);
                most = max(x[t], most);
                least = min(x[t], least);
            }
            const float low = -largest(-least);
            fitted best = fit(x, (largest(most) - low) / 15.0f, low), next = best;
            for (int again = 0; again < 2; ++again) {
                next = refit(x, next);
                if (next.error < best.error)
                    best = next;
            }
            steps[d] = best.step;
            steps[width_ + d] = best.least;
            for (std::size_t t = 0; t < tiles_; ++t) {
                alignas(64) float codes[tile_tokens];
                best.codes[t].store(codes);
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
        if (side_ == kv_kind::keys) {
            for (std::size_t d = 0; d < head_dim_; d += 4) {
                kvcache::detail::numbers_of(quads, d / 4, four);
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
                kvcache::detail::numbers_of(quads, (c + lane) / 4, four);
                for (std::size_t i = 0; i < 4; ++i)
                    fma(four[i], step, least).store(to + (lane + i) * width_ + c);
            }
        }
    }

    /// Returns the operand that describes an encoded tile.
    [[nodiscard]] quantized_operand codes(const std::byte* from, std::size_t tile) const noexcept {
        return {.format = quant_format::channels,
                .codes = from + tile * codes_.bytes(),
                .scales = steps_of(from),
                .table = from_middle,
                .bytes = codes_.bytes() + (tile + 1 == tiles_ ? 2 * width_ * sizeof(half) : 0)};
    }

private:
    static constexpr std::int8_t table[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    static constexpr std::int8_t from_middle[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

    // The codes of a channel and their squared error.
    struct fitted {
        half step, least;
        f32x16 codes[most_tiles];
        float error;
    };

    [[nodiscard]] fitted fit(const f32x16 (&x)[most_tiles], float step, float least) const noexcept {
        fitted made;
        made.step = to_half(step);
        made.least = to_half(least);
        const float kept = widen(made.step);
        const f32x16 scale = f32x16::broadcast(kept), from = f32x16::broadcast(widen(made.least)),
                     by = f32x16::broadcast(kept != 0.0f ? 1.0f / kept : 0.0f);
        f32x16 squares = f32x16::zero();
        for (std::size_t t = 0; t < tiles_; ++t) {
            made.codes[t] = rounded((x[t] - from) * by, 0.0f, 15.0f);
            const f32x16 off = x[t] - fma(made.codes[t], scale, from);
            squares = fma(off, off, squares);
        }
        made.error = sum(squares);
        return made;
    }

    // Fits the least-squares line through the values for these codes, then recomputes the codes for that line.
    [[nodiscard]] fitted refit(const f32x16 (&x)[most_tiles], const fitted& last) const noexcept {
        const f32x16 from = f32x16::broadcast(widen(last.least));
        f32x16 each = f32x16::zero(), offs = each, squares = each, products = each;
        for (std::size_t t = 0; t < tiles_; ++t) {
            const f32x16 code = last.codes[t], off = x[t] - from;
            each = each + code;
            offs = offs + off;
            squares = fma(code, code, squares);
            products = fma(code, off, products);
        }
        const auto count = static_cast<float>(tokens());
        const float codes = sum(each), mean = sum(offs) / count;
        const float spread = std::fma(-codes, codes / count, sum(squares));
        if (!(spread > 0.0f))
            return last;
        const float step = std::fma(-codes, mean, sum(products)) / spread;
        return fit(x, step, widen(last.least) + std::fma(-step, codes / count, mean));
    }

    [[nodiscard]] const half* steps_of(const std::byte* from) const noexcept {
        return reinterpret_cast<const half*>(from + tiles_ * codes_.bytes());
    }

    kv_kind side_;
    std::size_t head_dim_;
    std::size_t width_;
    std::size_t tiles_;
    packed_quants<4> codes_;
};

} // namespace detail

/// Quantizes each channel to 4 bits over groups of tokens, with a step and a minimum: 5 bits a value for groups of 32
/// tokens, 4.5 for 64. Meant for keys, whose large channels are large at every token. Values need a scale for each
/// token: `mixed_kv<int4_per_channel, int4>`. A page holds whole groups. A page that is not full stays in full
/// precision. (Liu et al. 2024, KIVI)
struct int4_per_channel {
    using role = codec_role;
    std::size_t group = 32; ///< Tokens that share a step; a multiple of 16, at most 128.

    [[nodiscard]] auto coder(kv_kind side, page_shape shape) const {
        require(group > 0 && group % tile_tokens == 0 && group <= detail::channel_coder::most_tiles * tile_tokens,
                "a group is a multiple of 16 tokens, at most 128");
        return detail::channel_coder(side, shape.head_dim, group);
    }
    [[nodiscard]] auto open(page_shape shape) const { return detail::open_sides(*this, *this, shape); }
};

static_assert(codec_policy<int4_per_channel>);

}}} // namespace kvcache::codec
