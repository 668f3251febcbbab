// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/side_codes.hpp>
#include <kvcache/kernel/simd.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvcache::inline KVCACHE_ABI {

/// What a coder writes: the keys of a page's heads or their values.
enum class page_side : std::uint8_t { keys, values };

/// Writes and reads one side of a page, `tokens()` rows at a time, in `bytes()` bytes. Both ways a tile of keys is
/// (head_dim, 16), one of values (16, value_width(head_dim)), tile behind tile.
template <class C>
concept side_coder = requires(const C c, const float* from, std::byte* to, const std::byte* coded, std::size_t tile,
                              float* out, std::span<float> row) {
    { c.tokens() } -> std::same_as<std::size_t>;
    { c.bytes() } -> std::same_as<std::size_t>;
    { c.name() } -> std::same_as<std::string>;
    c.encode(from, to);
    c.decode(coded, tile, out);
    c.turn(row);
    c.turn_back(row);
};

/// A codec that says how it codes either side, so that others can be made of it.
template <class P>
concept sided_codec = plays<P, codec_role> && requires(const P p, page_side side, page_shape shape) {
    { p.coder(side, shape) } -> side_coder;
};

namespace detail {

/// A tile of either side as strips of 16 tokens, one for each number of head_dim.
class tile_strips {
public:
    tile_strips(page_side side, std::size_t head_dim, const float* from) noexcept
        : side_(side), width_(value_width(head_dim)), from_(from) {}

    /// Number `d` of all 16 rows.
    [[nodiscard]] f32x16 operator()(std::size_t d) const noexcept {
        if (side_ == page_side::keys)
            return f32x16::load(from_ + d * tile_tokens);
        alignas(64) float lanes[tile_tokens];
        for (std::size_t lane = 0; lane < tile_tokens; ++lane)
            lanes[lane] = from_[lane * width_ + d];
        return f32x16::load(lanes);
    }

private:
    page_side side_;
    std::size_t width_;
    const float* from_;
};

/// The numbers of one tile of a side.
[[nodiscard]] constexpr std::size_t tile_numbers(page_side side, std::size_t head_dim) noexcept {
    return tile_tokens * (side == page_side::keys ? head_dim : value_width(head_dim));
}

} // namespace detail

} // namespace kvcache
