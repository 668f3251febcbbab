// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/attention_part.hpp>
#include <kvcache/attention/attention_plan.hpp>
#include <kvcache/attention/quantized_tiles.hpp>
#include <kvcache/attention/query_block.hpp>
#include <kvcache/attention/softmax_state.hpp>
#include <kvcache/attention/spliced_tiles.hpp>
#include <kvcache/attention/tile_kernels.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/f32.hpp>
#include <kvcache/codec/side_coder.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/kernel/rope.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
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

namespace detail {

/// Whether a codec's tiles are read in place, so that reading them needs no decoding.
template <class Codec>
inline constexpr bool reads_in_place = requires {
    requires Codec::in_place;
};

/// Queue of tiles that the queries of a block attend to next. A batch of tiles waits until the next batch is queued, so
/// that the next batch can be prefetched meanwhile.
template <class Codec>
class tile_queue {
public:
    explicit tile_queue(attention_scratch& scratch) noexcept : scratch_(scratch) {}

    /// Returns the slot of the next tile, to be filled in place: copying a tile would stall on the stores that just
    /// wrote it. If the queue is full, it processes the oldest batch first to free its memory.
    [[nodiscard]] attention_tile& next() {
        if (waiting_ == tiles_.size()) {
            run(oldest_, at_once);
            oldest_ = at_once - oldest_;
            waiting_ -= at_once;
        }
        return tiles_[place()];
    }

    /// Memory for the decoded floats of the tile that `next` returned. (keys and values of a tile)
    [[nodiscard]] std::span<float> numbers() noexcept {
        const std::size_t each = scratch_.tiles.size() / tiles_.size();
        return std::span(scratch_.tiles).subspan(place() * each, each);
    }
    /// Memory for the mask of that tile. (16)
    [[nodiscard]] float* mask() noexcept { return scratch_.mask.data() + place() * tile_tokens; }

    /// Appends the tile that `next` returned.
    void push() noexcept {
        attention_tile& tile = tiles_[place()];
        tile.ahead_keys = tile.ahead_values = nullptr;
        tile.ahead_key_codes = tile.ahead_value_codes = nullptr;
        if (waiting_ >= at_once) {
            attention_tile& before = tiles_[oldest_ + waiting_ - at_once];
            if (reads_in_place<Codec>) {
                before.ahead_keys = tile.keys;
                before.ahead_values = tile.values;
                tile_fetch::prefetch_tile(tile.keys, tile.values);
            }
            if (gives_codes<Codec> && tile.codes.keys.format != codec::quant_format::none) {
                before.ahead_key_codes = tile.codes.keys.codes;
                before.ahead_value_codes = tile.codes.values.codes;
            }
        }
        ++waiting_;
    }

    /// Processes all waiting tiles.
    void flush() {
        const std::size_t first = std::min(waiting_, at_once);
        run(oldest_, first);
        run(at_once - oldest_, waiting_ - first);
        waiting_ = oldest_ = 0;
    }

private:
    static constexpr std::size_t at_once = query_block::most_tiles;

    [[nodiscard]] std::size_t place() const noexcept { return (oldest_ + waiting_) % tiles_.size(); }

    void run(std::size_t first, std::size_t count) {
        scratch_.block.template run<gives_codes<Codec>>(std::span<const attention_tile>(tiles_).subspan(first, count));
    }

    attention_scratch& scratch_;
    std::array<attention_tile, 2 * at_once> tiles_; // two halves, used alternately; `waiting_` tiles from oldest_ on
    std::size_t oldest_ = 0;                        // first tile of either half
    std::size_t waiting_ = 0;
};

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
        scratch_.block.set_soft_cap(shape_.soft_cap);
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
                const std::size_t position = parts_[tile.part].queries.position_of(tile.first + i / shape_.group());
                scratch_.block.add(position, own, shape_.first_read(position));
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
                    ranges::copy(from, scratch_.query.begin());
                else
                    rotate_head(from, {queries.rotations + row * shape_.head_dim, shape_.head_dim}, scratch_.query);
                if (moved)
                    rotate_head(scratch_.query, scratch_.rotation, scratch_.query);
                if constexpr (page_writer<Codec>)
                    codec_.transform_key(scratch_.query);
                scratch_.block.template place<gives_codes<Codec>>(q, scratch_.query, shape_.scale);
            });
    }

    /// Finishes the queries: writes outputs, or leaves partials for the merge. `sinks`: of the layer's heads, or null.
    void finish(const float* sinks) {
        for_queries(item_.first_query_tile, item_.last_query_tile,
                    [&](std::size_t q, const query_tile& tile, std::size_t row, std::size_t head) {
                        if (tile.partials != query_tile::none) {
                            scratch_.block.leave(q);
                            return;
                        }
                        const query_rows& queries = parts_[tile.part].queries;
                        float* const out = queries.out + row * queries.out_stride + head * shape_.head_dim;
                        scratch_.block.finish(q, out, sinks == nullptr ? nullptr : sinks + head);
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

/// Executes one work item of a plan on one KV head of a layer: its queries attend to the pages of its ranges.
template <codec_state Codec, storage_state Storage>
class attention_worker {
public:
    attention_worker(const attention_shape& shape, page_source<Codec, Storage> source,
                     std::span<const attention_part> parts, std::span<const query_tile> query_tiles,
                     attention_scratch& scratch)
        : shape_(shape),
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
        queries_.finish(shape_.sinks == nullptr ? nullptr : shape_.sinks + std::size_t{index_of(layer)} * shape_.heads);
    }

private:
    using selection = typename work_item_queries<Codec>::selection;

    void walk(page_range range) {
        chosen_ = {};
        skip_unread(range);
        if (range.first == range.last)
            return;
        std::size_t end = 0; // largest number of positions that any of its queries sees
        for (std::size_t r = range.first_query_tile; r < range.last_query_tile; ++r)
            end = std::max(end, query_tiles_[r].end);
        const sequence_pages& pages = parts_[range.part].pages;
        if constexpr (page_writer<Codec> && gives_codes<Codec>)
            scratch_.block.set_quantize_queries(wants_quantized_queries(
                source_.codec->codes(source_.storage->bytes(pages.table[range.first].page), {}).keys.format));
        if (pages.spliced)
            scratch_.spliced.for_each(pages.table, range, item_, {shape_.first_read(first_position(range)), end},
                                      [&](const spliced_tile& one) { walk_spliced(pages, range, one); });
        else if constexpr (page_writer<Codec>)
            walk_apart(pages, range, end);
        else
            walk_together(pages, range, end);
        queue_.flush();
    }

    // Skips the entries before the windows of all queries; of a spliced table by whole blocks.
    void skip_unread(page_range& range) {
        const sequence_pages& pages = parts_[range.part].pages;
        from_ = shape_.first_read(first_position(range));
        if (pages.spliced)
            from_ = from_ / attention_plan::spliced_block * attention_plan::spliced_block;
        for (; range.first < range.last && range.position + pages.table[range.first].count <= from_; ++range.first)
            range.position += pages.table[range.first].count;
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
        const std::size_t least = first_position(range);
        std::size_t start = range.position;
        for (std::size_t e = range.first; e < range.last; start += pages.table[e++].count) {
            const page_entry& entry = pages.table[e];
            const std::size_t quantized_from = reads_quantized_from(start);
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
        const std::size_t first = queries_.position_of(r);
        if (tile.end <= start || start + entry.count <= shape_.first_read(first))
            return;
        const std::size_t count = std::min<std::size_t>(entry.count, tile.end - start);
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

    // The tile of a spliced table. Rows from elsewhere are read as they are stored.
    void walk_spliced(const sequence_pages& pages, const page_range& range, const spliced_tile& one) {
        if constexpr (page_writer<Codec>) {
            const auto* const exact = one.entry < pages.residual.size() ? pages.residual[one.entry] : nullptr;
            const std::size_t quantized_from = reads_quantized_from(static_cast<std::size_t>(one.position()));
            if (exact != nullptr && first_position(range) < quantized_from) {
                for (std::size_t r = range.first_query_tile; r < range.last_query_tile; ++r) {
                    const std::size_t exactly = rows_before(query_tiles_[r], quantized_from);
                    add_to({r, 0, r, exactly, one.base}, one, exact);
                    add_to({r, exactly, r, query_tiles_[r].rows, one.base}, one, nullptr);
                }
                return;
            }
        }
        add_to(all_of(range, one.base), one, nullptr);
    }

    // The number of rows of a query tile before a position. They ascend, with gaps where rows between them are kept.
    [[nodiscard]] std::size_t rows_before(const query_tile& tile, std::size_t position) const {
        std::size_t rows = 0;
        while (rows < tile.rows && parts_[tile.part].queries.position_of(tile.first + rows) < position)
            ++rows;
        return rows;
    }

    // The smallest position of the queries of a range.
    [[nodiscard]] std::size_t first_position(const page_range& range) const noexcept {
        std::size_t least = std::numeric_limits<std::size_t>::max();
        for (std::size_t r = range.first_query_tile; r < range.last_query_tile; ++r)
            least = std::min(least, queries_.position_of(r));
        return least;
    }

    // The first position whose query reads the page with position `at` quantized.
    [[nodiscard]] std::size_t reads_quantized_from(std::size_t at) const noexcept {
        const std::size_t page_tokens = source_.codec->shape().tokens;
        const residual_window window = source_.codec->window();
        return at / page_tokens < window.first ? std::numeric_limits<std::size_t>::max()
                                               : (at / page_tokens + window.recent + 1) * page_tokens;
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
        for (std::uint32_t tile = entry.first / tile_tokens; std::size_t{tile} * tile_tokens < last; ++tile) {
            const std::size_t origin = std::size_t{tile} * tile_tokens;
            const std::size_t first_lane = origin < entry.first ? entry.first - origin : 0;
            const std::size_t position = start + origin + first_lane - entry.first;
            if (const std::size_t split = position / query_block::split;
                split < item_.first_split || split >= item_.last_split)
                continue;
            const std::size_t last_lane = std::min<std::size_t>(tile_tokens, last - origin);
            if (position + (last_lane - first_lane) <= from_)
                continue;
            attention_tile& made = queue_.next();
            made.first = first_lane;
            made.last = last_lane;
            made.position = position;
            made.mask = nullptr;
            read(bytes, {layer_, head_, tile}, exact, made);
            queue_.push();
        }
    }

    // Adds a tile of a spliced table for some queries, which may be none.
    void add_to(const selection& some, const spliced_tile& one, const codec::residual_page* exact) {
        if (some.first_tile == some.last_tile && some.first_row == some.last_row)
            return;
        choose(some);
        attention_tile& made = queue_.next();
        one.put(made, queue_.mask());
        read(source_.storage->bytes(one.page), {layer_, head_, one.tile}, exact, made);
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
        const std::size_t keys = std::size_t{shape_.head_dim} * tile_tokens;
        const std::span<float> numbers = queue_.numbers();
        to.codes = {};
        to.keys = source_.codec->keys(bytes, at, numbers.first(keys));
        to.values = source_.codec->values(bytes, at, numbers.subspan(keys));
    }

    const attention_shape& shape_;
    page_source<Codec, Storage> source_;
    std::span<const attention_part> parts_;
    std::span<const query_tile> query_tiles_;
    attention_scratch& scratch_;
    layer_id layer_ = {};
    head_id head_ = {};
    work_item item_;
    std::size_t from_ = 0; // the first position that any query of the range reads
    work_item_queries<Codec> queries_;
    selection chosen_;
    tile_queue<Codec> queue_;
};

} // namespace detail

}} // namespace kvcache
