// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/query_block.hpp>
#include <kvcache/attention/woven_tiles.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/core/aligned.hpp>
#include <kvcache/core/shape.hpp>

#include <cstddef>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// The working memory of one thread that attends, taken once.
struct attention_scratch {
    attention_scratch(std::size_t head_dim, std::size_t capacity)
        : block(head_dim, capacity),
          rotation(head_dim),
          query(head_dim),
          tiles(2 * query_block::most_tiles * (head_dim + value_width(head_dim)) * tile_tokens),
          holes(2 * query_block::most_tiles * tile_tokens) {}

    query_block block;
    std::vector<float> rotation;
    std::vector<float> query;
    aligned_vector<float> tiles; ///< Decoded, where a codec decodes. (2 most_tiles, keys and values of a tile)
    aligned_vector<float> holes; ///< (2 most_tiles, 16)
    woven_tiles woven;
};

} // namespace kvcache
