// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>
#include <kvcache/core/abi.hpp>
#include <kvcache/core/number_format.hpp>
#include <kvcache/kernel/dot_codes.hpp>
#include <kvcache/kernel/simd.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvcache { inline namespace KVCACHE_ABI { namespace codec {

/// Storage format of the keys or values of a tile, so that attention reads them without decoding the tile.
enum class quant_format : std::uint8_t {
    none,     ///< Not readable without decoding: the tile is decoded.
    bf16,     ///< bfloat16 in the tile's order.
    f16,      ///< binary16 in the tile's order.
    int8,     ///< int8 with a scale for each group of a row.
    int4,     ///< 4-bit indices into a table of int8, with a scale for each group of a row.
    int3,     ///< 3-bit indices, as `int4`.
    int2,     ///< 2-bit indices, as `int4`.
    channels, ///< 4-bit codes with a step and a minimum for each element of head_dim.
};

/// The keys or the values of a tile, in quantized form.
struct quantized_operand {
    quant_format format = quant_format::none;
    const std::byte* codes = nullptr;
    const half* scales = nullptr; ///< (groups, 16); with `channels` the steps, then the minima: (2, padded_head_dim).
    const std::int8_t* table = nullptr; ///< Value of each index, ascending; of `channels` from the middle. (16)
    std::size_t group = 0;              ///< Elements of head_dim that share a scale.
    std::size_t bytes = 0; ///< Approximate number of bytes from `codes` on, to prefetch before the tile is read.
    const bfloat16* base = nullptr; ///< Of deltas: the row that the first row of their group adds to; else null.
    std::size_t before = 0;         ///< Of deltas: tiles of the group before this one.
    std::size_t stride = 0;         ///< Of deltas: bytes from a tile of the group to the next.
};

/// Keys and values of a tile, in quantized form.
struct quantized_tile {
    quantized_operand keys;
    quantized_operand values;
};

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

/// Codes of `Bits` bits for one tile, in groups of four (quads) for dot products. A quad of keys is four adjacent
/// elements of head_dim for 16 tokens; a quad of values is four tokens for 16 adjacent elements of head_dim.
///
///     keys:    quad d / 4                    row token     element d % 4
///     values:  quad d / 16 * 4 + token / 4   row d % 16    element token % 4
///
/// With 8 bits a quad is 64 bytes, row by row. With 4 or 2 bits, 2 or 4 consecutive quads share 64 bytes, in ascending
/// bits. With 3 or 5 bits the lower two or four bits are stored as with 2 or 4 bits; the upper bits follow after all of
/// them, 8 quads in 64 bytes.
template <unsigned Bits>
class packed_quants {
    static_assert((Bits >= 2 && Bits <= 5) || Bits == 8, "codes have 2, 3, 4, 5 or 8 bits");
    static constexpr bool split = Bits == 3 || Bits == 5;
    using quads = kvcache::detail::code_quads<Bits>;

public:
    packed_quants(kv_kind side, std::size_t head_dim) noexcept
        : side_(side), quads_(side == kv_kind::keys ? (head_dim + 3) / 4 : padded_head_dim(head_dim) / 4) {}

    [[nodiscard]] std::size_t bytes() const noexcept { return lower() + (split ? (quads_ + 7) / 8 * 64 : 0); }

    /// Returns the view of the quads in a tile's bytes.
    [[nodiscard]] quads view(const std::byte* from, const std::int8_t* table) const noexcept {
        return {from, from + lower(), table};
    }

    /// Writes the code of element `d` of token `lane`. Requires: bytes not yet written are zero.
    void put(std::byte* to, std::size_t d, std::size_t lane, std::uint8_t code) const noexcept {
        const bool keys = side_ == kv_kind::keys;
        const std::size_t quad = keys ? d / 4 : d / 16 * 4 + lane / 4;
        const std::size_t byte = keys ? lane * 4 + d % 4 : d % 16 * 4 + lane % 4;
        const unsigned field = code & ((1u << quads::part) - 1);
        to[quad / quads::per * 64 + byte] |= static_cast<std::byte>(field << quad % quads::per * quads::part);
        if constexpr (split)
            to[lower() + quad / 8 * 64 + byte] |= static_cast<std::byte>((code >> quads::part & 1u) << quad % 8);
    }

private:
    [[nodiscard]] std::size_t lower() const noexcept { return (quads_ + quads::per - 1) / quads::per * 64; }

    kv_kind side_;
    std::size_t quads_;
};

/// Rounds to the nearest integer, ties to even, and clamps to [low, high]; a NaN gives `low`.
[[nodiscard]] inline f32x16 rounded(const f32x16& x, float low, float high) noexcept {
    const f32x16 magic = f32x16::broadcast(12582912.0f); // 1.5 * 2^23: adding it rounds away the fraction
    return min(max(x, f32x16::broadcast(low)), f32x16::broadcast(high)) + magic - magic;
}

} // namespace detail

}}} // namespace kvcache::codec
