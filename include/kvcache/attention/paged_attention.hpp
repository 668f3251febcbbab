// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/attention_plan.hpp>
#include <kvcache/attention/query_block.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/core/aligned.hpp>
#include <kvcache/core/page_table.hpp>
#include <kvcache/kernel/rope.hpp>
#include <kvcache/storage/concept.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcache {

/// The pages of one sequence as attention reads them.
template <codec_state Codec, storage_state Storage>
struct paged_rows {
    const Codec* codec = nullptr;
    const Storage* storage = nullptr;
    std::span<const page_entry> table = {};
};

/// How a model attends: its heads, and its rotation (null for a model without one).
struct attention_shape {
    std::uint32_t heads = 1;
    std::uint32_t kv_heads = 1;
    std::uint32_t head_dim = 64;
    float scale = 1.0f; ///< What scores are multiplied by, usually 1 / sqrt(head_dim).
    const rope* rotation = nullptr;

    /// Query heads that read one key and value head.
    [[nodiscard]] constexpr std::uint32_t group() const noexcept { return heads / kv_heads; }
};

/// Consecutive rows of one sequence that ask. (rows, heads, head_dim)
struct query_rows {
    const float* queries = nullptr; ///< Not rotated.
    const float* rotations =
        nullptr;            ///< `rope::fill` of each row's position, for pages of base 0. (rows, 2, head_dim / 2)
    float* out = nullptr;   ///< Written. (rows, heads, head_dim)
    std::size_t stride = 0; ///< Numbers from one row of queries to the next.
    std::size_t out_stride = 0;
    std::size_t position = 0; ///< Of the first row; each row attends to [0, its position].
    std::size_t rows = 0;
};

/// Rows that ask, and the pages they ask.
template <codec_state Codec, storage_state Storage>
struct attention_part {
    paged_rows<Codec, Storage> pages;
    query_rows asked;
};

/// The working memory of one thread that attends, taken once.
struct attention_scratch {
    attention_scratch(std::size_t head_dim, std::size_t capacity)
        : block(head_dim, capacity),
          rotation(head_dim),
          query(head_dim),
          tiles(2 * query_block::most_tiles * (head_dim + value_width(head_dim)) * tile_tokens) {}

    query_block block;
    std::vector<float> rotation;
    std::vector<float> query;
    aligned_vector<float> tiles; ///< Decoded, where a codec decodes. (2 most_tiles, keys and values of a tile)
};

namespace detail {

/// Whether a codec's tiles lie in the page, so that looking at one costs nothing.
template <class Codec>
inline constexpr bool reads_in_place = requires {
    requires Codec::in_place;
};

/// One job of a plan on one key and value head of a layer.
template <codec_state Codec, storage_state Storage>
class attention_walk {
public:
    using part = attention_part<Codec, Storage>;

    attention_walk(const attention_shape& shape, std::span<const part> parts, std::span<const attention_run> runs,
                   attention_scratch& scratch)
        : shape_(shape), parts_(parts), runs_(runs), scratch_(scratch), block_(scratch.block) {}

    /// `partials`: where queries leave partials that are merged later. (query of the head, split, state)
    void run(const attention_job& job, std::span<const attention_segment> segments, layer_id layer, head_id kv_head,
             float* partials) {
        layer_ = layer;
        head_ = kv_head;
        job_ = job;
        add_queries(partials);
        for (std::size_t s = job.first_segment; s < job.last_segment; ++s)
            walk(segments[s]);
        for_queries(job.first_run, job.last_run,
                    [&](std::size_t q, const query_rows& asked, std::size_t row, std::size_t head, bool whole) {
                        if (whole)
                            block_.finish(q, asked.out + row * asked.out_stride + head * shape_.head_dim);
                        else
                            block_.leave(q);
                    });
    }

private:
    // Calls body(query of the block, rows, row, head, whether this job makes its output).
    template <class Body>
    void for_queries(std::size_t first_run, std::size_t last_run, Body body) {
        const std::size_t group = shape_.group(), first_head = index_of(head_) * group;
        for (std::size_t r = first_run; r < last_run; ++r) {
            const attention_run& run = runs_[r];
            std::size_t q = run.queries - runs_[job_.first_run].queries;
            for (std::size_t row = run.first; row < run.first + run.rows; ++row)
                for (std::size_t head = first_head; head < first_head + group; ++head)
                    body(q++, parts_[run.part].asked, row, head, run.partials == attention_run::none);
        }
    }

    void add_queries(float* partials) {
        block_.clear();
        const std::size_t state = softmax_state::numbers(value_width(shape_.head_dim));
        for (std::size_t r = job_.first_run; r < job_.last_run; ++r) {
            const attention_run& run = runs_[r];
            const std::size_t splits = attention_plan::splits(run.end);
            const std::size_t position = parts_[run.part].asked.position + run.first;
            for (std::size_t i = 0; i < run.rows * shape_.group(); ++i) {
                float* own = nullptr;
                if (run.partials != attention_run::none) {
                    own = partials + (run.partials + i * splits) * state;
                    for (std::size_t s = job_.first_split; s < std::min(job_.last_split, splits); ++s)
                        softmax_state(own + s * state, value_width(shape_.head_dim)).clear();
                }
                block_.add(position + i / shape_.group(), own);
            }
        }
    }

    void walk(const attention_segment& segment) {
        const std::size_t before = runs_[job_.first_run].queries;
        const attention_run& last = runs_[segment.last_run - 1];
        block_.select(runs_[segment.first_run].queries - before, last.queries + last.rows * shape_.group() - before);
        std::size_t end = 0; // positions that any of them sees
        for (std::size_t r = segment.first_run; r < segment.last_run; ++r)
            end = std::max(end, runs_[r].end);

        const auto& pages = parts_[segment.part].pages;
        std::size_t start = segment.position;
        for (std::size_t e = segment.first; e < segment.last; ++e) {
            const page_entry& entry = pages.table[e];
            if (e == segment.first || entry.base != pages.table[e - 1].base) {
                flush();
                load(segment, entry.base);
            }
            if (start < end)
                gather(pages, entry, start, std::min<std::size_t>(entry.count, end - start));
            start += entry.count;
        }
        flush();
    }

    // Queries rotated by (position - base), scaled.
    void load(const attention_segment& segment, std::int64_t base) {
        std::span<const float> rotation;
        const query_rows* of = nullptr;
        std::size_t turned = 0; // row that `rotation` is of
        for_queries(segment.first_run, segment.last_run,
                    [&](std::size_t q, const query_rows& asked, std::size_t row, std::size_t head, bool) {
                        const std::span from(asked.queries + row * asked.stride + head * shape_.head_dim,
                                             shape_.head_dim);
                        if (shape_.rotation != nullptr && (of != &asked || turned != row)) {
                            of = &asked;
                            turned = row;
                            if (base == 0) {
                                rotation = {asked.rotations + row * shape_.head_dim, shape_.head_dim};
                            } else {
                                shape_.rotation->fill(static_cast<std::int64_t>(asked.position + row) - base,
                                                      scratch_.rotation);
                                rotation = scratch_.rotation;
                            }
                        }
                        if (rotation.empty())
                            std::ranges::copy(from, scratch_.query.begin());
                        else
                            rotate_head(from, rotation, scratch_.query);
                        block_.place(q, scratch_.query, shape_.scale);
                    });
    }

    // The tiles of an entry's first `count` rows that begin in the job's splits.
    void gather(const paged_rows<Codec, Storage>& pages, const page_entry& entry, std::size_t start,
                std::size_t count) {
        const std::span<const std::byte> bytes = pages.storage->bytes(entry.page);
        const std::size_t last = entry.first + count; // row behind the last in use
        const std::size_t keys = std::size_t{shape_.head_dim} * tile_tokens;
        for (std::uint32_t tile = entry.first / tile_tokens; tile * tile_tokens < last; ++tile) {
            const std::size_t origin = std::size_t{tile} * tile_tokens;
            const std::size_t first_lane = origin < entry.first ? entry.first - origin : 0;
            const std::size_t position = start + origin + first_lane - entry.first;
            if (const std::size_t split = position / query_block::split;
                split < job_.first_split || split >= job_.last_split)
                continue;
            make_room(); // first: the oldest tiles' scratch is decoded into next
            const auto scratch =
                std::span(scratch_.tiles).subspan(taken_++ % tiles_.size() * (scratch_.tiles.size() / tiles_.size()));
            const page_tile at{layer_, head_, tile};
            push({.keys = pages.codec->keys(bytes, at, scratch.first(keys)),
                  .values = pages.codec->values(bytes, at, scratch.subspan(keys)),
                  .first = first_lane,
                  .last = std::min<std::size_t>(tile_tokens, last - origin),
                  .position = position});
        }
    }

    // Tiles wait until as many follow them as go together: those are fetched from memory meanwhile.
    void make_room() {
        if (waiting_ < tiles_.size())
            return;
        block_.attend(std::span(tiles_).first(at_once));
        std::copy(tiles_.begin() + at_once, tiles_.end(), tiles_.begin());
        waiting_ -= at_once;
    }

    void push(const attention_tile& tile) {
        if (reads_in_place<Codec> && waiting_ >= at_once) {
            tiles_[waiting_ - at_once].ahead_keys = tile.keys;
            tiles_[waiting_ - at_once].ahead_values = tile.values;
        }
        tiles_[waiting_++] = tile;
    }

    void flush() {
        block_.attend(std::span(tiles_).first(waiting_));
        waiting_ = 0;
    }

    const attention_shape& shape_;
    std::span<const part> parts_;
    std::span<const attention_run> runs_;
    attention_scratch& scratch_;
    query_block& block_;
    layer_id layer_ = {};
    head_id head_ = {};
    attention_job job_;
    static constexpr std::size_t at_once = query_block::most_tiles;
    std::array<attention_tile, 2 * at_once> tiles_; // the first waiting_ wait
    std::size_t waiting_ = 0;
    std::size_t taken_ = 0;
};

} // namespace detail

/// Causal attention of one key and value head over pages, for the rows [first, last) of `asked`: softmax(q k) v, each
/// row over the positions up to its own (Vaswani et al. 2017; online softmax, Milakov & Gimelshein 2018).
/// Tiles run in table order, long contexts split at fixed positions: the bits of a row depend on its own past alone,
/// never on the rows beside it, the page size or the thread. Cost: O(rows * positions * head_dim * group).
/// `scratch` is for the shape's head_dim, and as many queries as a group at least.
template <codec_state Codec, storage_state Storage>
void attend(const attention_shape& shape, const paged_rows<Codec, Storage>& pages, layer_id layer, head_id kv_head,
            const query_rows& asked, std::size_t first, std::size_t last, attention_scratch& scratch) {
    const attention_part<Codec, Storage> part{pages, asked};
    const std::size_t at_once = scratch.block.capacity() / shape.group();
    for (std::size_t row = first; row < last; row += at_once) {
        const std::size_t rows = std::min(at_once, last - row);
        const attention_run run{.first = row, .rows = rows, .end = asked.position + row + rows};
        const attention_segment segment{.last = pages.table.size(), .last_run = 1};
        detail::attention_walk<Codec, Storage> walk(shape, {&part, 1}, {&run, 1}, scratch);
        walk.run({.last_segment = 1, .last_run = 1, .last_split = attention_plan::splits(run.end)}, {&segment, 1},
                 layer, kv_head, nullptr);
    }
}

/// The same with working memory of its own, taken for this call.
template <codec_state Codec, storage_state Storage>
void attend(const attention_shape& shape, const paged_rows<Codec, Storage>& pages, layer_id layer, head_id kv_head,
            const query_rows& asked, std::size_t first, std::size_t last) {
    attention_scratch scratch(shape.head_dim, attention_plan::capacity(shape.group()));
    attend(shape, pages, layer, kv_head, asked, first, last, scratch);
}

} // namespace kvcache
