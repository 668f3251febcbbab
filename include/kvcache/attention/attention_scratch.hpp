// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/query_block.hpp>
#include <kvcache/attention/spliced_tiles.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/core/aligned.hpp>
#include <kvcache/core/shape.hpp>

#include <cstddef>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Working memory of one attention thread, allocated once.
struct attention_scratch {
    attention_scratch(std::size_t head_dim, std::size_t capacity)
        : block(head_dim, capacity),
          rotation(head_dim),
          query(head_dim),
          tiles(2 * query_block::most_tiles * (head_dim + padded_head_dim(head_dim)) * tile_tokens),
          mask(2 * query_block::most_tiles * tile_tokens) {}

    query_block block;
    std::vector<float> rotation;
    std::vector<float> query;
    aligned_vector<float> tiles; ///< Decoded, where a codec decodes. (2 most_tiles, keys and values of a tile)
    aligned_vector<float> mask;  ///< (2 most_tiles, 16)
    spliced_tiles spliced;
};

}} // namespace kvcache
