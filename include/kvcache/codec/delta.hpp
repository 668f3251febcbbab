// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/codebook.hpp>
#include <kvcache/codec/quantized_pages.hpp>
#include <kvcache/codec/side_coder.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/core/number_format.hpp>
#include <kvcache/kernel/simd.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace kvcache { inline namespace KVCACHE_ABI { namespace codec {

namespace detail {

/// Coder of a group of rows as the first row in bfloat16, and the difference of each later row from the decoded row
/// before it, as `codebook` codes a row. So the errors of the differences do not add up. A group is its tiles, then the
/// first row:
///
///     [ codes of 16 rows ][ scales: (16) ][ codes of the next ][ scales: (16) ] ... [ row 0: (padded_head_dim) ]
template <unsigned Bits>
class delta_coder {
public:
    delta_coder(kv_kind side, std::size_t head_dim, std::size_t tokens)
        : side_(side),
          head_dim_(head_dim),
          width_(padded_head_dim(head_dim)),
          tiles_(tokens / tile_tokens),
          codes_(side, head_dim),
          rotation_(codebook_quantizer<Bits>{}, side, head_dim) {}

    [[nodiscard]] std::size_t tokens() const noexcept { return tiles_ * tile_tokens; }
    [[nodiscard]] std::size_t bytes() const noexcept { return tiles_ * stride() + width_ * sizeof(bfloat16); }
    [[nodiscard]] std::string name() const {
        return "deltas of " + std::to_string(Bits) + " bits, a row in bf16 every " + std::to_string(tokens()) +
               " tokens, byte queries";
    }
    void transform(std::span<float> row) const noexcept { rotation_.transform(row); }
    void inverse_transform(std::span<float> row) const noexcept { rotation_.inverse_transform(row); }

    void encode(const float* from, std::byte* to) const {
        std::memset(to, 0, bytes());
        aligned_vector<float> before(width_), delta(width_); // zeros
        auto* const base = reinterpret_cast<bfloat16*>(to + tiles_ * stride());
        for (std::size_t d = 0; d < head_dim_; ++d) {
            base[d] = to_bfloat16(number(from, 0, d));
            before[d] = widen(base[d]);
        }
        for (std::size_t t = 1; t < tokens(); ++t) {
            std::byte* const tile = to + t / tile_tokens * stride();
            for (std::size_t d = 0; d < head_dim_; ++d)
                delta[d] = number(from, t, d) - before[d];
            f32x16 squares = f32x16::zero();
            for (std::size_t d = 0; d < width_; d += 16) {
                const f32x16 x = f32x16::load(delta.data() + d);
                squares = fma(x, x, squares);
            }
            half& kept = reinterpret_cast<half*>(tile + codes_.bytes())[t % tile_tokens];
            kept = to_half(std::sqrt(sum(squares) / static_cast<float>(head_dim_)) * normal_levels<Bits>::unit);
            const float scale = widen(kept);
            const f32x16 by = f32x16::broadcast(scale != 0.0f ? 1.0f / scale : 0.0f);
            for (std::size_t d = 0; d < head_dim_; d += 16) {
                alignas(64) float codes[16];
                quantizer_.code(f32x16::load(delta.data() + d) * by).store(codes);
                for (std::size_t i = 0; i < 16 && d + i < head_dim_; ++i) {
                    const auto code = static_cast<std::uint8_t>(static_cast<std::int32_t>(codes[i]));
                    codes_.put(tile, d + i, t % tile_tokens, code);
                    before[d + i] = std::fma(scale, static_cast<float>(table[code]), before[d + i]);
                }
            }
        }
    }

    /// Decodes a tile. Cost: reads the codes of the group's earlier tiles too.
    void decode(const std::byte* from, std::size_t tile, float* to) const noexcept {
        const bfloat16* const base = base_of(from);
        f32x16 four[4];
        if (side_ == kv_kind::keys) {
            for (std::size_t d = 0; d < head_dim_; d += 4) {
                const f32x16 none = f32x16::zero();
                f32x16 sums[4] = {none, none, none, none}; // of the earlier tiles
                for (std::size_t t = 0; t < tile; ++t) {
                    numbers(from, t, d / 4, four);
                    for (std::size_t i = 0; i < 4; ++i)
                        sums[i] = fma(four[i], scales(from, t), sums[i]);
                }
                numbers(from, tile, d / 4, four);
                for (std::size_t i = 0; i < 4 && d + i < head_dim_; ++i)
                    (running_sums(four[i] * scales(from, tile)) + f32x16::broadcast(widen(base[d + i]) + sum(sums[i])))
                        .store(to + (d + i) * tile_tokens);
            }
            return;
        }
        for (std::size_t c = 0; c < width_; c += 16) {
            f32x16 row = f32x16::load(base + c);
            for (std::size_t t = 0; t <= tile; ++t)
                for (std::size_t lane = 0; lane < tile_tokens; lane += 4) {
                    numbers(from, t, (c + lane) / 4, four);
                    for (std::size_t i = 0; i < 4; ++i) {
                        row = fma(four[i], f32x16::broadcast(widen(scales_of(from, t)[lane + i])), row);
                        if (t == tile)
                            row.store(to + (lane + i) * width_ + c);
                    }
                }
        }
    }

    /// Returns the operand that describes an encoded tile of keys. Attention decodes values.
    [[nodiscard]] quantized_operand codes(const std::byte* from, std::size_t tile) const noexcept {
        if (side_ == kv_kind::values)
            return {};
        return {.format = Bits == 4   ? quant_format::int4
                          : Bits == 3 ? quant_format::int3
                                      : quant_format::int2,
                .codes = from + tile * stride(),
                .scales = scales_of(from, tile),
                .table = table,
                .group = head_dim_,
                .bytes = stride() + (tile + 1 == tiles_ ? width_ * sizeof(bfloat16) : 0),
                .base = base_of(from),
                .before = tile,
                .stride = stride()};
    }

private:
    static constexpr const std::int8_t (&table)[16] = normal_levels<Bits>::table;

    [[nodiscard]] std::size_t stride() const noexcept { return codes_.bytes() + tile_tokens * sizeof(half); }
    [[nodiscard]] const half* scales_of(const std::byte* from, std::size_t tile) const noexcept {
        return reinterpret_cast<const half*>(from + tile * stride() + codes_.bytes());
    }
    [[nodiscard]] f32x16 scales(const std::byte* from, std::size_t tile) const noexcept {
        return f32x16::load(scales_of(from, tile));
    }
    [[nodiscard]] const bfloat16* base_of(const std::byte* from) const noexcept {
        return reinterpret_cast<const bfloat16*>(from + tiles_ * stride());
    }
    void numbers(const std::byte* from, std::size_t tile, std::size_t quad, f32x16 (&to)[4]) const noexcept {
        kvcache::detail::numbers_of(codes_.view(from + tile * stride(), table), quad, to);
    }
    // Element `d` of row `t` of the group.
    [[nodiscard]] float number(const float* from, std::size_t t, std::size_t d) const noexcept {
        const float* const tile = from + t / tile_tokens * tile_numbers(side_, head_dim_);
        return side_ == kv_kind::keys ? tile[d * tile_tokens + t % tile_tokens] : tile[t % tile_tokens * width_ + d];
    }

    kv_kind side_;
    std::size_t head_dim_;
    std::size_t width_;
    std::size_t tiles_;
    packed_quants<Bits> codes_;
    codebook_quantizer<Bits> quantizer_;
    randomized_hadamard_coder<Bits> rotation_; // for its transforms
};

} // namespace detail

/// Stores the first row of each group of tokens in bfloat16, and of each later row its difference from the row before,
/// as `codebook` stores rows. Bits + 16 / head_dim + 16 / group bits a value. Meant for keys, of which adjacent ones
/// are alike: attention sums their products, and decodes values: `mixed_kv<delta<3>, codebook<3>>`. (quant.cpp)
template <unsigned Bits = 3>
struct delta {
    static_assert(Bits >= 2 && Bits <= 4, "deltas have 2, 3 or 4 bits");
    using role = codec_role;
    std::size_t group = 64; ///< Tokens that a row in bfloat16 begins; a multiple of 16. A smaller page is one group.

    [[nodiscard]] auto coder(kv_kind side, page_shape shape) const {
        require(group > 0 && group % tile_tokens == 0, "a group is a multiple of 16 tokens");
        return detail::delta_coder<Bits>(side, shape.head_dim, std::min<std::size_t>(group, shape.tokens));
    }
    [[nodiscard]] auto open(page_shape shape) const { return detail::open_sides(*this, *this, shape); }
};

static_assert(codec_policy<delta<3>>);

}}} // namespace kvcache::codec
