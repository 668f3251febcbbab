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

namespace kvcache {

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

/// The numbers a row of values takes in a tile: head_dim, rounded up to whole vectors.
[[nodiscard]] constexpr std::size_t value_width(std::size_t head_dim) noexcept {
    return (head_dim + 15) / 16 * 16;
}

/// The working state of a codec: writes rows of keys and values into a page, and gives them back in tiles of 16.
/// `keys` and `values` return the tile, either where it lies in the page or decoded into `scratch`:
/// keys as (head_dim, 16), values as (16, value_width(head_dim)). `copy` takes the first `rows` rows to another page
/// and reads no byte of the rows behind them, which somebody else may be writing.
template <class S>
concept codec_state = requires(const S s, std::span<std::byte> page, std::span<const std::byte> bytes, page_row row,
                               page_tile tile, std::span<const float> numbers, std::span<float> scratch,
                               std::size_t rows) {
    { s.page_bytes() } -> std::same_as<std::size_t>;
    { s.name() } -> std::same_as<std::string>;
    s.encode(page, row, numbers, numbers);
    s.copy(bytes, page, rows);
    { s.keys(bytes, tile, scratch) } -> std::same_as<const float*>;
    { s.values(bytes, tile, scratch) } -> std::same_as<const float*>;
};

/// How the numbers of a page are kept.
template <class P>
concept codec_policy = plays<P, codec_role> && requires(const P p, page_shape shape) {
    p.open(shape);
} && codec_state<opened_by<P, page_shape>>;

} // namespace kvcache
