// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/attention_part.hpp>
#include <kvcache/attention/attention_plan.hpp>
#include <kvcache/attention/attention_scratch.hpp>
#include <kvcache/attention/softmax_state.hpp>
#include <kvcache/attention/work_item.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/kernel/rope.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Queries of one work item on one KV head: those of its query tiles, in the query block of a thread.
template <codec_state Codec>
class work_item_queries {
public:
    /// Range of queries, from a row of one query tile to before a row of another, for pages with one base.
    struct selection {
        std::size_t first_tile = 0, first_row = 0;
        std::size_t last_tile = 0, last_row = 0;
        std::int64_t base = 0;
        friend bool operator==(const selection&, const selection&) = default;
    };

    work_item_queries(const attention_shape& shape, const Codec& codec, std::span<const attention_part> parts,
                      std::span<const query_tile> tiles, attention_scratch& scratch)
        : shape_(shape), codec_(codec), parts_(parts), query_tiles_(tiles), scratch_(scratch) {}

    /// Fills the block with the queries of a work item. `partials`: destination of the partials that are merged later.
    /// (query of the head, split, state)
    void take(const work_item& item, head_id kv_head, float* partials) {
        item_ = item;
        head_ = kv_head;
        scratch_.block.clear();
        const std::size_t state = softmax_state::numbers(padded_head_dim(shape_.head_dim));
        for (std::size_t r = item.first_query_tile; r < item.last_query_tile; ++r) {
            const query_tile& tile = query_tiles_[r];
            const std::size_t splits = attention_plan::splits(tile.end);
            for (std::size_t i = 0; i < tile.rows * shape_.group(); ++i) {
                float* own = nullptr;
                if (tile.partials != query_tile::none) {
                    own = partials + (tile.partials + i * splits) * state;
                    for (std::size_t s = item.first_split; s < std::min(item.last_split, splits); ++s)
                        softmax_state(own + s * state, padded_head_dim(shape_.head_dim)).clear();
                }
                scratch_.block.add(parts_[tile.part].queries.position_of(tile.first + i / shape_.group()), own);
            }
        }
    }

    /// Position of the first row of a query tile.
    [[nodiscard]] std::size_t position_of(std::size_t tile) const noexcept {
        return parts_[query_tiles_[tile].part].queries.position_of(query_tiles_[tile].first);
    }

    /// Selects the queries that attend next, rotated by (position - base) and scaled. They are rotated to their
    /// positions first, then back by the base.
    void load(const selection& some) {
        const std::size_t group = shape_.group();
        const std::size_t first = query_of(some.first_tile) + some.first_row * group;
        const std::size_t last = query_of(some.last_tile) + some.last_row * group;
        const bool moved = shape_.rotation != nullptr && some.base != 0;
        scratch_.block.select(first, last);
        if (moved)
            shape_.rotation->fill(-some.base, scratch_.rotation);
        for_queries(
            some.first_tile, some.last_tile + 1,
            [&](std::size_t q, const query_tile& tile, std::size_t row, std::size_t head) {
                if (q < first || q >= last)
                    return;
                const query_rows& queries = parts_[tile.part].queries;
                const std::span from(queries.data + row * queries.stride + head * shape_.head_dim, shape_.head_dim);
                if (shape_.rotation == nullptr)
                    std::ranges::copy(from, scratch_.query.begin());
                else
                    rotate_head(from, {queries.rotations + row * shape_.head_dim, shape_.head_dim}, scratch_.query);
                if (moved)
                    rotate_head(scratch_.query, scratch_.rotation, scratch_.query);
                if constexpr (page_writer<Codec>)
                    codec_.transform_key(scratch_.query);
                scratch_.block.template place<gives_codes<Codec>>(q, scratch_.query, shape_.scale);
            });
    }

    /// Finishes the queries: writes outputs, or leaves partials for the merge.
    void finish() {
        for_queries(item_.first_query_tile, item_.last_query_tile,
                    [&](std::size_t q, const query_tile& tile, std::size_t row, std::size_t head) {
                        if (tile.partials != query_tile::none) {
                            scratch_.block.leave(q);
                            return;
                        }
                        const query_rows& queries = parts_[tile.part].queries;
                        float* const out = queries.out + row * queries.out_stride + head * shape_.head_dim;
                        scratch_.block.finish(q, out);
                        if constexpr (page_writer<Codec>)
                            codec_.inverse_transform({out, shape_.head_dim});
                    });
    }

private:
    // Calls body(query of the block, query tile, row, head).
    template <class Body>
    void for_queries(std::size_t first_query_tile, std::size_t last_query_tile, Body body) {
        const std::size_t group = shape_.group(), first_head = index_of(head_) * group;
        for (std::size_t r = first_query_tile; r < last_query_tile; ++r) {
            const query_tile& tile = query_tiles_[r];
            std::size_t q = query_of(r);
            for (std::size_t row = tile.first; row < tile.first + tile.rows; ++row)
                for (std::size_t head = first_head; head < first_head + group; ++head)
                    body(q++, tile, row, head);
        }
    }

    // First query of a query tile, as an index into the block.
    [[nodiscard]] std::size_t query_of(std::size_t tile) const noexcept {
        return query_tiles_[tile].queries - query_tiles_[item_.first_query_tile].queries;
    }

    const attention_shape& shape_;
    const Codec& codec_;
    std::span<const attention_part> parts_;
    std::span<const query_tile> query_tiles_;
    attention_scratch& scratch_;
    work_item item_;
    head_id head_ = {};
};

}}} // namespace kvcache::detail
