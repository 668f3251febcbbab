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

namespace kvcache::inline KVCACHE_ABI {

/// Where a row of keys and values stands inside a page.
struct page_row {
    layer_id layer = {};
    head_id head = {};
    std::uint32_t row = 0;
};

/// Where a tile of 16 rows stands inside a page.
struct page_tile {
    layer_id layer = {};
    head_id head = {};
    std::uint32_t tile = 0;
};

/// Which pages before its own a query reads as they were computed, not as they are coded.
struct exact_pages {
    std::size_t first = 0;  ///< The first pages of a sequence.
    std::size_t recent = 0; ///< The pages right before the query's own.

    /// Whether a query of page `own` reads page `page` exactly. Its own it always does.
    [[nodiscard]] constexpr bool covers(std::size_t page, std::size_t own) const noexcept {
        return page + recent >= own || page < first;
    }

    friend constexpr bool operator==(const exact_pages&, const exact_pages&) = default;
};

/// The numbers a row of values takes in a tile: head_dim, rounded up to whole vectors.
[[nodiscard]] constexpr std::size_t value_width(std::size_t head_dim) noexcept {
    return (head_dim + 15) / 16 * 16;
}

/// Gives a page's keys and values in tiles of 16 rows. `keys` and `values` return the tile, either where it lies in the
/// page or decoded into `scratch`: keys as (head_dim, 16), values as (16, value_width(head_dim)).
template <class S>
concept page_reader = requires(const S s, std::span<const std::byte> bytes, page_tile tile, std::span<float> scratch) {
    { s.page_bytes() } -> std::same_as<std::size_t>;
    { s.name() } -> std::same_as<std::string>;
    { s.keys(bytes, tile, scratch) } -> std::same_as<const float*>;
    { s.values(bytes, tile, scratch) } -> std::same_as<const float*>;
};

/// Writes rows of keys and values into a page one by one, and loses nothing. `copy` takes the first `rows` rows to
/// another page and reads no byte of the rows behind them, which somebody else may be writing.
template <class S>
concept row_writer = requires(const S s, std::span<std::byte> page, std::span<const std::byte> bytes, page_row row,
                              std::span<const float> numbers, std::size_t rows) {
    s.encode(page, row, numbers, numbers);
    s.copy(bytes, page, rows);
};

/// Writes a layer's head of a page once all its rows are there, as the plain codec lays them out; what it keeps may
/// differ from what was computed. `turn_key` and `turn_value` turn a row before it is kept, exact or coded: queries are
/// turned as keys, and what attention gives is turned back as values.
template <class S>
concept page_writer = requires(const S s, std::span<std::byte> page, std::span<const std::byte> rows, layer_id layer,
                               head_id head, std::span<float> row) {
    s.encode(page, layer, head, rows);
    s.turn_key(row);
    s.turn_value(row);
    s.turn_back(row);
    { s.exact() } -> std::same_as<exact_pages>;
    { s.shape() } -> std::same_as<page_shape>;
};

/// Says how pages lie that only a backend of its own reads and writes: it names the backend and the layout, which make
/// a cache's identity another one than the host's.
template <class S>
concept far_codec_state = requires(const S s) {
    { s.page_bytes() } -> std::same_as<std::size_t>;
    { s.name() } -> std::same_as<std::string>;
    { s.layout_name() } -> std::same_as<std::string>;
    { s.backend() } -> std::same_as<std::string>;
};

/// The working state of a codec.
template <class S>
concept codec_state = (page_reader<S> && (row_writer<S> || page_writer<S>)) || far_codec_state<S>;

namespace detail {

/// Whether a codec says how a tile is coded: both sides, or neither.
template <class Codec>
inline constexpr bool gives_codes = requires(const Codec c, std::span<const std::byte> bytes, page_tile at) {
    c.codes(bytes, at);
};

} // namespace detail

/// How the numbers of a page are kept.
template <class P>
concept codec_policy = plays<P, codec_role> && requires(const P p, page_shape shape) {
    p.open(shape);
} && codec_state<opened_by<P, page_shape>>;

} // namespace kvcache
