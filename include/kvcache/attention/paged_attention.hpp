// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/attention_plan.hpp>
#include <kvcache/attention/attention_worker.hpp>
#include <kvcache/attention/paged_rows.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/storage/concept.hpp>

#include <algorithm>
#include <cstddef>

namespace kvcache::inline KVCACHE_ABI {

/// Causal attention of one KV head over pages, for the rows [first, last) of `asked`: softmax(q k) v, each row over the
/// positions up to its own (Vaswani et al. 2017; online softmax, Milakov & Gimelshein 2018). Tiles are processed in
/// table order, and long contexts are split at fixed positions. The bits of a row depend only on its own past, never on
/// neighboring rows, the page size or the thread.
/// Requires: `scratch` has the shape's head_dim and a capacity of at least one group of queries. Cost: O(rows *
/// positions * head_dim * group).
template <codec_state Codec, storage_state Storage>
void paged_attention(const attention_shape& shape, const paged_rows<Codec, Storage>& pages, layer_id layer,
                     head_id kv_head, const query_rows& asked, std::size_t first, std::size_t last,
                     attention_scratch& scratch) {
    const attention_part<Codec, Storage> part{pages, asked};
    const std::size_t at_once = scratch.block.capacity() / shape.group();
    for (std::size_t row = first; row < last; row += at_once) {
        const std::size_t rows = std::min(at_once, last - row);
        const query_group run{.first = row, .rows = rows, .end = asked.position_of(row + rows - 1) + 1};
        const page_range segment{.last = pages.table.size(), .last_run = 1};
        detail::attention_worker<Codec, Storage> walk(shape, {&part, 1}, {&run, 1}, scratch);
        walk.run({.last_segment = 1, .last_run = 1, .last_split = attention_plan::splits(run.end)}, {&segment, 1},
                 layer, kv_head, nullptr);
    }
}

/// The same with its own working memory, allocated for this call.
template <codec_state Codec, storage_state Storage>
void paged_attention(const attention_shape& shape, const paged_rows<Codec, Storage>& pages, layer_id layer,
                     head_id kv_head, const query_rows& asked, std::size_t first, std::size_t last) {
    attention_scratch scratch(shape.head_dim, attention_plan::capacity(shape.group()));
    paged_attention(shape, pages, layer, kv_head, asked, first, last, scratch);
}

} // namespace kvcache
