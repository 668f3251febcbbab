// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/number_format.hpp>
#include <kvcache/core/platform/standard.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace kvcache { inline namespace KVCACHE_ABI { namespace codec {

/// The order of a layer's rows in a page.
enum class kv_layout : std::uint8_t {
    nhd, ///< (tokens, kv_heads, head_dim)
    hnd, ///< (kv_heads, tokens, head_dim)
};

/// Stores rows unpadded in the order NHD or HND, as float, half or bfloat16, for hosts that read them in place:
/// `nhd_f32`, `nhd_f16`, `nhd_bf16`, `hnd_f32`, `hnd_f16`, `hnd_bf16`. A page has for each layer the keys, then the
/// values:
///
///     nhd, layer: [ keys: (tokens, kv_heads, head_dim) ][ values: (tokens, kv_heads, head_dim) ]
///     hnd, layer: [ keys: (kv_heads, tokens, head_dim) ][ values: (kv_heads, tokens, head_dim) ]
///
/// half and bfloat16 round to nearest, ties to even, when a row is written; larger magnitudes saturate to the largest
/// finite value. Every later read gives the rounded row.
template <weight_format Number, kv_layout Layout>
struct row_major {
    using role = codec_role;
    class state;
    [[nodiscard]] state open(page_shape shape) const { return state(shape); }
};

template <weight_format Number, kv_layout Layout>
class row_major<Number, Layout>::state {
public:
    using number = Number; ///< The type of the stored numbers.

    explicit state(page_shape shape) noexcept : shape_(shape) {}

    [[nodiscard]] std::size_t page_bytes() const noexcept {
        return std::size_t{2} * shape_.layers * side_numbers() * sizeof(Number);
    }
    [[nodiscard]] std::string name() const { return std::string("row-major ") + format_name<Number>; }
    [[nodiscard]] std::string layout_name() const {
        return Layout == kv_layout::nhd ? "keys, values: (tokens, kv_heads, head_dim)"
                                        : "keys, values: (kv_heads, tokens, head_dim)";
    }

    /// Numbers from a row of a KV head to the row of the next token.
    [[nodiscard]] std::size_t row_stride() const noexcept {
        return Layout == kv_layout::nhd ? std::size_t{shape_.kv_heads} * shape_.head_dim : shape_.head_dim;
    }
    /// The key of a row, in place. (head_dim)
    [[nodiscard]] const Number* key_row(std::span<const std::byte> page, page_row at) const noexcept {
        return reinterpret_cast<const Number*>(page.data()) + offset(at);
    }
    /// The value of a row, in place. (head_dim)
    [[nodiscard]] const Number* value_row(std::span<const std::byte> page, page_row at) const noexcept {
        return key_row(page, at) + side_numbers();
    }

    /// Writes one row. key, value: (head_dim)
    void encode(std::span<std::byte> page, page_row at, std::span<const float> key,
                std::span<const float> value) const {
        Number* const keys = reinterpret_cast<Number*>(page.data()) + offset(at);
        ranges::transform(key, keys, narrow<Number>);
        ranges::transform(value, keys + side_numbers(), narrow<Number>);
    }

    /// Copies the first rows to another page.
    void copy(std::span<const std::byte> from, std::span<std::byte> to, std::size_t rows) const {
        const std::size_t row_bytes = row_stride() * sizeof(Number), block = shape_.tokens * row_bytes;
        for (std::size_t at = 0; at < page_bytes(); at += block)
            std::memcpy(to.data() + at, from.data() + at, rows * row_bytes);
    }

    /// The keys of a tile, widened and transposed into `scratch`; rows past the page's last are zero. (head_dim, 16)
    [[nodiscard]] const float* keys(std::span<const std::byte> page, page_tile at, std::span<float> scratch) const {
        const std::size_t dim = shape_.head_dim;
        expects(scratch.size() >= dim * tile_tokens, "the keys of a tile fit into the scratch memory");
        const std::size_t rows = rows_of(at);
        if (rows < tile_tokens)
            ranges::fill(scratch.first(dim * tile_tokens), 0.0f);
        const Number* row = key_row(page, first_of(at));
        for (std::size_t lane = 0; lane < rows; ++lane, row += row_stride())
            for (std::size_t d = 0; d < dim; ++d)
                scratch[d * tile_tokens + lane] = widen(row[d]);
        return scratch.data();
    }

    /// The values of a tile, widened and padded with zeros into `scratch`; rows past the page's last are zero.
    /// (16, padded_head_dim)
    [[nodiscard]] const float* values(std::span<const std::byte> page, page_tile at, std::span<float> scratch) const {
        const std::size_t dim = shape_.head_dim, width = padded_head_dim(dim);
        expects(scratch.size() >= tile_tokens * width, "the values of a tile fit into the scratch memory");
        const std::size_t rows = rows_of(at);
        ranges::fill(scratch.subspan(rows * width, (tile_tokens - rows) * width), 0.0f);
        const Number* row = value_row(page, first_of(at));
        for (std::size_t lane = 0; lane < rows; ++lane, row += row_stride())
            for (std::size_t d = 0; d < width; ++d)
                scratch[lane * width + d] = d < dim ? widen(row[d]) : 0.0f;
        return scratch.data();
    }

private:
    // Numbers of a layer's keys in a page.
    [[nodiscard]] std::size_t side_numbers() const noexcept {
        return std::size_t{shape_.tokens} * shape_.kv_heads * shape_.head_dim;
    }
    // The number in the page at which a key begins.
    [[nodiscard]] std::size_t offset(page_row at) const noexcept {
        const std::size_t head_stride =
            Layout == kv_layout::nhd ? shape_.head_dim : std::size_t{shape_.tokens} * shape_.head_dim;
        return std::size_t{2} * index_of(at.layer) * side_numbers() + index_of(at.head) * head_stride +
               at.row * row_stride();
    }
    // Rows of the page in a tile.
    [[nodiscard]] std::size_t rows_of(page_tile at) const noexcept {
        return std::min<std::size_t>(tile_tokens, shape_.tokens - std::size_t{at.tile} * tile_tokens);
    }
    [[nodiscard]] static page_row first_of(page_tile at) noexcept { return {at.layer, at.head, at.tile * tile_tokens}; }

    page_shape shape_;
};

using nhd_f32 = row_major<float, kv_layout::nhd>;     ///< float32, (tokens, kv_heads, head_dim).
using nhd_f16 = row_major<half, kv_layout::nhd>;      ///< binary16, (tokens, kv_heads, head_dim).
using nhd_bf16 = row_major<bfloat16, kv_layout::nhd>; ///< bfloat16, (tokens, kv_heads, head_dim).
using hnd_f32 = row_major<float, kv_layout::hnd>;     ///< float32, (kv_heads, tokens, head_dim).
using hnd_f16 = row_major<half, kv_layout::hnd>;      ///< binary16, (kv_heads, tokens, head_dim).
using hnd_bf16 = row_major<bfloat16, kv_layout::hnd>; ///< bfloat16, (kv_heads, tokens, head_dim).

static_assert(codec_policy<nhd_f32> && row_major_codec<nhd_bf16::state> && row_major_codec<hnd_f16::state>);

} // namespace codec

}} // namespace kvcache
