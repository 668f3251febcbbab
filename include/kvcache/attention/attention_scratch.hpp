// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/attention_plan.hpp>
#include <kvcache/attention/query_block.hpp>
#include <kvcache/core/aligned.hpp>
#include <kvcache/core/id.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvcache {

/// Lanes of a tile in a woven table: `lanes` has a bit for each that stands there.
struct woven_tile {
    page_id page = {};
    std::uint32_t tile = 0;
    std::uint32_t lanes = 0;
    std::int64_t base = 0;
    std::int64_t origin = 0; ///< Position of lane 0, were it there.

    [[nodiscard]] std::int64_t position() const noexcept { return origin + std::countr_zero(lanes); }
};

/// The working memory of one thread that attends, taken once.
struct attention_scratch {
    attention_scratch(std::size_t head_dim, std::size_t capacity)
        : block(head_dim, capacity),
          rotation(head_dim),
          query(head_dim),
          tiles(2 * query_block::most_tiles * (head_dim + value_width(head_dim)) * tile_tokens),
          holes(2 * query_block::most_tiles * tile_tokens) {
        woven.reserve(attention_plan::woven_block);
    }

    query_block block;
    std::vector<float> rotation;
    std::vector<float> query;
    aligned_vector<float> tiles;   ///< Decoded, where a codec decodes. (2 most_tiles, keys and values of a tile)
    aligned_vector<float> holes;   ///< (2 most_tiles, 16)
    std::vector<woven_tile> woven; ///< Of the block that is read.
};

} // namespace kvcache
