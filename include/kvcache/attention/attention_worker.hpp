// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/attention_part.hpp>
#include <kvcache/attention/attention_scratch.hpp>
#include <kvcache/attention/quantized_tiles.hpp>
#include <kvcache/attention/spliced_tiles.hpp>
#include <kvcache/attention/tile_queue.hpp>
#include <kvcache/attention/work_item.hpp>
#include <kvcache/attention/work_item_queries.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/f32.hpp>
#include <kvcache/core/contract.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Executes one work item of a plan on one KV head of a layer: its queries attend to the pages of its ranges.
template <codec_state Codec, storage_state Storage>
class attention_worker {
public:
    attention_worker(const attention_shape& shape, page_source<Codec, Storage> source,
                     std::span<const attention_part> parts, std::span<const query_tile> query_tiles,
                     attention_scratch& scratch)
        : head_dim_(shape.head_dim),
          source_(source),
          parts_(parts),
          query_tiles_(query_tiles),
          scratch_(scratch),
          queries_(shape, *source.codec, parts, query_tiles, scratch),
          queue_(scratch) {}

    /// Runs one work item. `partials`: destination of the partials that are merged later. (query of the head, split,
    /// state)
    void run(const work_item& item, std::span<const page_range> page_ranges, layer_id layer, head_id kv_head,
             float* partials) {
        layer_ = layer;
        head_ = kv_head;
        item_ = item;
        queries_.take(item, kv_head, partials);
        for (std::size_t s = item.first_range; s < item.last_range; ++s)
            walk(page_ranges[s]);
        queries_.finish();
    }

private:
    using selection = typename work_item_queries<Codec>::selection;

    void walk(const page_range& range) {
        chosen_ = {};
        std::size_t end = 0; // largest number of positions that any of its queries sees
        for (std::size_t r = range.first_query_tile; r < range.last_query_tile; ++r)
            end = std::max(end, query_tiles_[r].end);
        const sequence_pages& pages = parts_[range.part].pages;
        if constexpr (page_writer<Codec>)
            walk_apart(pages, range, end);
        else if (pages.spliced)
            scratch_.spliced.for_each(pages.table, range, item_, end, [&](const spliced_tile& one) {
                choose(all_of(range, one.base));
                add(one);
            });
        else
            walk_together(pages, range, end);
        queue_.flush();
    }

    void walk_together(const sequence_pages& pages, const page_range& range, std::size_t end) {
        std::size_t start = range.position;
        for (std::size_t e = range.first; e < range.last && start < end; start += pages.table[e++].count) {
            const page_entry& entry = pages.table[e];
            if (e == range.first || entry.base != pages.table[e - 1].base)
                choose(all_of(range, entry.base));
            add(entry, start, std::min<std::size_t>(entry.count, end - start), nullptr);
        }
    }

    // For codecs that quantize whole pages: the rows before `quantized_from` read the page in full precision, the later
    // rows read it quantized.
    void walk_apart(const sequence_pages& pages, const page_range& range, std::size_t end) {
        const std::size_t page_tokens = source_.codec->shape().tokens;
        const residual_window exact = source_.codec->exact();
        if constexpr (gives_codes<Codec>)
            scratch_.block.set_quantize_queries(wants_quantized_queries(
                source_.codec->codes(source_.storage->bytes(pages.table[range.first].page), {}).keys.format));
        std::size_t least = end; // smallest position of its rows
        for (std::size_t r = range.first_query_tile; r < range.last_query_tile; ++r)
            least = std::min(least, queries_.position_of(r));
        std::size_t start = range.position;
        for (std::size_t e = range.first; e < range.last; start += pages.table[e++].count) {
            const page_entry& entry = pages.table[e];
            const std::size_t quantized_from = start / page_tokens < exact.first
                                                   ? std::numeric_limits<std::size_t>::max()
                                                   : (start / page_tokens + exact.recent + 1) * page_tokens;
            if (least >= quantized_from) {
                choose(all_of(range, entry.base));
                add(entry, start, std::min<std::size_t>(entry.count, end - start), nullptr);
            } else {
                for (std::size_t r = range.first_query_tile; r < range.last_query_tile; ++r)
                    add_apart(r, e, start, quantized_from);
            }
        }
    }

    // One table entry for one query tile, some of whose rows may read the page in full precision and others quantized.
    void add_apart(std::size_t r, std::size_t e, std::size_t start, std::size_t quantized_from) {
        const query_tile& tile = query_tiles_[r];
        const sequence_pages& pages = parts_[tile.part].pages;
        const page_entry& entry = pages.table[e];
        if (tile.end <= start)
            return;
        const std::size_t count = std::min<std::size_t>(entry.count, tile.end - start), first = queries_.position_of(r);
        const std::size_t exactly = std::min(tile.rows, quantized_from - std::min(quantized_from, first));
        if (exactly > 0) {
            expects(e < pages.residual.size() && pages.residual[e] != nullptr, "what a query reads exactly is there");
            choose({r, 0, r, exactly, entry.base});
            add(entry, start, count, pages.residual[e]);
        }
        if (exactly < tile.rows) {
            choose({r, exactly, r, tile.rows, entry.base});
            add(entry, start, count, nullptr);
        }
    }

    [[nodiscard]] selection all_of(const page_range& range, std::int64_t base) const noexcept {
        const std::size_t last = range.last_query_tile - 1;
        return {range.first_query_tile, 0, last, query_tiles_[last].rows, base};
    }

    // Selects the queries that attend to the tiles added from now on.
    void choose(const selection& wanted) {
        if (wanted == chosen_)
            return;
        queue_.flush();
        queries_.load(wanted);
        chosen_ = wanted;
    }

    // Adds the tiles of an entry's first `count` rows that begin in the work item's splits. Reads them from `exact` if
    // it is not null.
    void add(const page_entry& entry, std::size_t start, std::size_t count, const codec::residual_page* exact) {
        const std::span<const std::byte> bytes = source_.storage->bytes(entry.page);
        const std::size_t last = entry.first + count; // end of the rows in use
        for (std::uint32_t tile = entry.first / tile_tokens; tile * tile_tokens < last; ++tile) {
            const std::size_t origin = std::size_t{tile} * tile_tokens;
            const std::size_t first_lane = origin < entry.first ? entry.first - origin : 0;
            const std::size_t position = start + origin + first_lane - entry.first;
            if (const std::size_t split = position / query_block::split;
                split < item_.first_split || split >= item_.last_split)
                continue;
            attention_tile& made = queue_.next();
            made.first = first_lane;
            made.last = std::min<std::size_t>(tile_tokens, last - origin);
            made.position = position;
            made.mask = nullptr;
            read(bytes, {layer_, head_, tile}, exact, made);
            queue_.push();
        }
    }

    void add(const spliced_tile& one) {
        attention_tile& made = queue_.next();
        one.put(made, queue_.mask());
        decode(source_.storage->bytes(one.page), {layer_, head_, one.tile}, made);
        queue_.push();
    }

    // Sets a tile's floats or its quantized operands.
    void read(std::span<const std::byte> bytes, page_tile at, const codec::residual_page* exact, attention_tile& to) {
        if constexpr (page_writer<Codec>)
            if (exact != nullptr) {
                const codec::f32::state computed(source_.codec->shape());
                to.codes = {};
                to.keys = computed.keys(exact->bytes(), at, {});
                to.values = computed.values(exact->bytes(), at, {});
                return;
            }
        if constexpr (gives_codes<Codec>) {
            to.keys = to.values = nullptr;
            to.codes = source_.codec->codes(bytes, at);
            if (to.codes.keys.format != codec::quant_format::none &&
                to.codes.values.format != codec::quant_format::none)
                return;
        }
        decode(bytes, at, to);
    }

    void decode(std::span<const std::byte> bytes, page_tile at, attention_tile& to) {
        const std::size_t keys = head_dim_ * tile_tokens;
        const std::span<float> numbers = queue_.numbers();
        to.codes = {};
        to.keys = source_.codec->keys(bytes, at, numbers.first(keys));
        to.values = source_.codec->values(bytes, at, numbers.subspan(keys));
    }

    std::size_t head_dim_;
    page_source<Codec, Storage> source_;
    std::span<const attention_part> parts_;
    std::span<const query_tile> query_tiles_;
    attention_scratch& scratch_;
    layer_id layer_ = {};
    head_id head_ = {};
    work_item item_;
    work_item_queries<Codec> queries_;
    selection chosen_;
    tile_queue<Codec> queue_;
};

}}} // namespace kvcache::detail
