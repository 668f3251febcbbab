// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/attention_part.hpp>
#include <kvcache/attention/attention_plan.hpp>
#include <kvcache/attention/attention_worker.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/storage/concept.hpp>

#include <algorithm>
#include <cstddef>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Causal attention of one KV head over pages, for all query rows of `part`: softmax(q k) v, each row over the
/// positions up to its own (Vaswani et al. 2017; online softmax, Milakov & Gimelshein 2018). Tiles are processed in
/// table order, and long contexts are split at fixed positions. The bits of a row depend only on its own past, never on
/// neighboring rows, the page size or the thread. Requires: `scratch` has the shape's head_dim and a capacity of at
/// least one group of queries. Cost: O(rows * positions * head_dim * group).
template <codec_state Codec, storage_state Storage>
void paged_attention(const attention_shape& shape, page_source<Codec, Storage> source, const attention_part& part,
                     layer_id layer, head_id kv_head, attention_scratch& scratch) {
    const std::size_t at_once = scratch.block.capacity() / shape.group(), all = part.queries.rows;
    for (std::size_t row = 0; row < all; row += at_once) {
        const std::size_t rows = std::min(at_once, all - row);
        const query_tile tile{.first = row, .rows = rows, .end = part.queries.position_of(row + rows - 1) + 1};
        const page_range range{.last = part.pages.table.size(), .last_query_tile = 1};
        detail::attention_worker<Codec, Storage> worker(shape, source, {&part, 1}, {&tile, 1}, scratch);
        worker.run({.last_range = 1, .last_query_tile = 1, .last_split = attention_plan::splits(tile.end)}, {&range, 1},
                   layer, kv_head, nullptr);
    }
}

/// The same with its own working memory, allocated for this call.
template <codec_state Codec, storage_state Storage>
void paged_attention(const attention_shape& shape, page_source<Codec, Storage> source, const attention_part& part,
                     layer_id layer, head_id kv_head) {
    attention_scratch scratch(shape.head_dim, attention_plan::capacity(shape.group()));
    paged_attention(shape, source, part, layer, kv_head, scratch);
}

}} // namespace kvcache
