// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/quantized_operand.hpp>
#include <kvcache/kernel/simd.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvcache { inline namespace KVCACHE_ABI { namespace codec {

/// The half of a page that a coder writes: keys or values.
enum class kv_kind : std::uint8_t { keys, values };

/// Coder of the keys or the values of a page, `tokens()` rows at a time, in `bytes()` bytes. Decoded tiles are
/// contiguous: (head_dim, 16) for keys, (16, padded_head_dim(head_dim)) for values.
template <class C>
concept side_coder = requires(const C c, const float* from, std::byte* to, const std::byte* quantized, std::size_t tile,
                              float* out, std::span<float> row) {
    { c.tokens() } -> std::same_as<std::size_t>;
    { c.bytes() } -> std::same_as<std::size_t>;
    { c.name() } -> std::same_as<std::string>;
    c.encode(from, to);
    c.decode(quantized, tile, out);
    c.transform(row);
    c.inverse_transform(row);
};

/// Codec that has a coder for keys and one for values, so that other codecs can wrap it.
template <class P>
concept sided_codec = plays<P, codec_role> && requires(const P p, kv_kind side, page_shape shape) {
    { p.coder(side, shape) } -> side_coder;
};

namespace detail {

/// View of a tile of keys or values as strips of 16 tokens, one for each element of head_dim.
class tile_strips {
public:
    tile_strips(kv_kind side, std::size_t head_dim, const float* from) noexcept
        : side_(side), width_(padded_head_dim(head_dim)), from_(from) {}

    /// Returns element `d` of all 16 rows.
    [[nodiscard]] f32x16 operator()(std::size_t d) const noexcept {
        if (side_ == kv_kind::keys)
            return f32x16::load(from_ + d * tile_tokens);
        alignas(64) float lanes[tile_tokens];
        for (std::size_t lane = 0; lane < tile_tokens; ++lane)
            lanes[lane] = from_[lane * width_ + d];
        return f32x16::load(lanes);
    }

private:
    kv_kind side_;
    std::size_t width_;
    const float* from_;
};

/// Floats in one tile of keys or values.
[[nodiscard]] constexpr std::size_t tile_numbers(kv_kind side, std::size_t head_dim) noexcept {
    return tile_tokens * (side == kv_kind::keys ? head_dim : padded_head_dim(head_dim));
}

} // namespace detail

}}} // namespace kvcache::codec
