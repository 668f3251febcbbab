// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/id.hpp>
#include <kvcache/core/role.hpp>
#include <kvcache/core/shape.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Position of one row of keys and values inside a page.
struct page_row {
    layer_id layer = {};
    head_id head = {};
    std::uint32_t row = 0;
};

/// Position of a tile of 16 rows inside a page.
struct page_tile {
    layer_id layer = {};
    head_id head = {};
    std::uint32_t tile = 0;
};

/// Pages that a query reads in full precision instead of quantized, in addition to its own page.
struct residual_window {
    std::size_t first = 0;  ///< First pages of the sequence.
    std::size_t recent = 0; ///< Pages directly before the query's own page.

    /// Returns whether a query in page `own` reads page `page` in full precision. True for its own page.
    [[nodiscard]] constexpr bool covers(std::size_t page, std::size_t own) const noexcept {
        return page + recent >= own || page < first;
    }

    friend constexpr bool operator==(const residual_window&, const residual_window&) = default;
};

/// Floats of one row of values in a tile: head_dim, rounded up to whole vectors of 16.
[[nodiscard]] constexpr std::size_t padded_head_dim(std::size_t head_dim) noexcept {
    return (head_dim + 15) / 16 * 16;
}

/// Reader of a page's keys and values in tiles of 16 rows. `keys` and `values` return the tile in place or decoded into
/// `scratch`: keys as (head_dim, 16), values as (16, padded_head_dim(head_dim)).
template <class S>
concept page_reader = requires(const S s, std::span<const std::byte> bytes, page_tile tile, std::span<float> scratch) {
    { s.page_bytes() } -> std::same_as<std::size_t>;
    { s.name() } -> std::same_as<std::string>;
    { s.keys(bytes, tile, scratch) } -> std::same_as<const float*>;
    { s.values(bytes, tile, scratch) } -> std::same_as<const float*>;
};

/// Writer of single rows of keys and values into a page. A read returns the written row; each number is rounded by
/// itself at most. `copy` copies the first `rows` rows to another page. It reads no byte of later rows, which another
/// thread may be writing.
template <class S>
concept row_writer = requires(const S s, std::span<std::byte> page, std::span<const std::byte> bytes, page_row row,
                              std::span<const float> numbers, std::size_t rows) {
    s.encode(page, row, numbers, numbers);
    s.copy(bytes, page, rows);
};

/// Codec whose rows a host reads in place: `key_row` and `value_row` point to the head_dim numbers of a row, and
/// the same row of the next token is `row_stride` numbers further.
template <class S>
concept row_major_codec = row_writer<S> && requires(const S s, std::span<const std::byte> page, page_row at) {
    { s.key_row(page, at) } -> std::same_as<const typename S::number*>;
    { s.value_row(page, at) } -> std::same_as<const typename S::number*>;
    { s.row_stride() } -> std::same_as<std::size_t>;
};

/// Writer of whole pages: it quantizes one head of a layer once all rows of the page are present, in the layout of
/// codec::f32. `transform_key` and `transform_value` transform a row before it is stored, in full precision or
/// quantized. Queries are transformed as keys; the output of attention is transformed back by `inverse_transform`. row:
/// (head_dim)
template <class S>
concept page_writer = requires(const S s, std::span<std::byte> page, std::span<const std::byte> rows, layer_id layer,
                               head_id head, std::span<float> row) {
    s.encode(page, layer, head, rows);
    s.transform_key(row);
    s.transform_value(row);
    s.inverse_transform(row);
    { s.window() } -> std::same_as<residual_window>;
    { s.shape() } -> std::same_as<page_shape>;
};

/// Codec whose pages only its own backend reads and writes. The names of the backend and of the layout are part of the
/// cache's identity.
template <class S>
concept device_codec_state = requires(const S s) {
    { s.page_bytes() } -> std::same_as<std::size_t>;
    { s.name() } -> std::same_as<std::string>;
    { s.layout_name() } -> std::same_as<std::string>;
    { s.backend() } -> std::same_as<std::string>;
};

/// Codec of pages that are blobs of the host. `begin` gives memory for a blob of so many bytes, `blob` is what was
/// written, `used` the bytes of the page that a record keeps; `clear` makes it a page without a blob.
template <class S>
concept opaque_codec_state = requires(const S s, std::span<std::byte> page, std::span<const std::byte> bytes,
                                      std::size_t size) {
    { s.page_bytes() } -> std::same_as<std::size_t>;
    { s.name() } -> std::same_as<std::string>;
    { s.begin(page, size) } -> std::same_as<std::span<std::byte>>;
    { s.blob(bytes) } -> std::same_as<std::span<const std::byte>>;
    { s.used(bytes) } -> std::same_as<std::span<const std::byte>>;
    s.clear(page);
};

/// State of an opened codec.
template <class S>
concept codec_state =
    (page_reader<S> && (row_writer<S> || page_writer<S>)) || device_codec_state<S> || opaque_codec_state<S>;

/// What a page of a codec holds: rows that are written one by one, rows that are encoded together, or one blob.
enum class page_content { rows, encoded, opaque };
/// The content of a codec's pages.
template <codec_state S>
inline constexpr page_content content_of = page_writer<S>          ? page_content::encoded
                                           : opaque_codec_state<S> ? page_content::opaque
                                                                   : page_content::rows;

/// Whether a codec takes pages of any number of tokens. One that stores tiles takes multiples of 16.
template <codec_state S>
inline constexpr bool takes_any_tokens = row_major_codec<S> || device_codec_state<S> || opaque_codec_state<S>;

/// Whether a codec has pages of this shape.
template <codec_state S>
[[nodiscard]] constexpr bool has_pages_of(const page_shape& shape) noexcept {
    return shape.valid() && (takes_any_tokens<S> || shape.whole_tiles());
}

namespace detail {

/// The rule of page shapes, in words.
template <codec_state S>
inline constexpr const char* shape_rule =
    takes_any_tokens<S> ? "a page shape has no extent that is zero or too large"
                        : "a page shape has no extent that is zero or too large, and tokens is a multiple of 16";

/// Whether a codec gives attention the quantized operands of a tile, without decoding it.
template <class Codec>
inline constexpr bool gives_codes = requires(const Codec c, std::span<const std::byte> bytes, page_tile at) {
    c.codes(bytes, at);
};

} // namespace detail

/// Policy for the storage format of keys and values in a page.
template <class P>
concept codec_policy = plays<P, codec_role> && requires(const P p, page_shape shape) {
    p.open(shape);
} && codec_state<opened_by<P, page_shape>>;

}} // namespace kvcache
