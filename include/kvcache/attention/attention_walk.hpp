// SPDX-License-Identifier: MIT
#pragma once

// Longer than 300 lines: one walk over pages that are read in place, decoded or exact.

#include <kvcache/attention/attention_part.hpp>
#include <kvcache/attention/attention_plan.hpp>
#include <kvcache/attention/query_block.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/plain.hpp>
#include <kvcache/core/contract.hpp>
#include <kvcache/core/page_table.hpp>
#include <kvcache/storage/concept.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace kvcache {

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
                            finish(q, asked.out + row * asked.out_stride + head * shape_.head_dim);
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

    void finish(std::size_t q, float* out) {
        block_.finish(q, out);
        if constexpr (page_writer<Codec>)
            parts_.front().pages.codec->turn_back({out, shape_.head_dim});
    }

    // The first query of a run, among those of the block.
    [[nodiscard]] std::size_t query_of(std::size_t run) const noexcept {
        return runs_[run].queries - runs_[job_.first_run].queries;
    }

    void walk(const attention_segment& segment) {
        if constexpr (page_writer<Codec>) {
            walk_coded(segment);
            return;
        }
        const attention_run& last = runs_[segment.last_run - 1];
        block_.select(query_of(segment.first_run), query_of(segment.last_run - 1) + last.rows * shape_.group());
        std::size_t end = 0; // positions that any of them sees
        for (std::size_t r = segment.first_run; r < segment.last_run; ++r)
            end = std::max(end, runs_[r].end);

        const auto& pages = parts_[segment.part].pages;
        std::size_t start = segment.position;
        for (std::size_t e = segment.first; e < segment.last; ++e) {
            const page_entry& entry = pages.table[e];
            if (e == segment.first || entry.base != pages.table[e - 1].base) {
                flush();
                load(segment.first_run, segment.last_run, entry.base, 0, block_.size());
            }
            if (start < end)
                gather(pages, entry, start, std::min<std::size_t>(entry.count, end - start), nullptr);
            start += entry.count;
        }
        flush();
    }

    // The same where queries read some pages exactly and others coded: the rows before `coded_from` do the first.
    void walk_coded(const attention_segment& segment) {
        const auto& pages = parts_[segment.part].pages;
        const std::size_t page_tokens = pages.codec->shape().tokens;
        const exact_pages exact = pages.codec->exact();
        chosen_ = {};
        std::size_t start = segment.position;
        for (std::size_t e = segment.first; e < segment.last; ++e) {
            const page_entry& entry = pages.table[e];
            const std::size_t coded_from = start / page_tokens < exact.first
                                               ? std::numeric_limits<std::size_t>::max()
                                               : (start / page_tokens + exact.recent + 1) * page_tokens;
            std::size_t least = coded_from, end = 0;
            for (std::size_t r = segment.first_run; r < segment.last_run; ++r) {
                least = std::min(least, position_of(r));
                end = std::max(end, runs_[r].end);
            }
            if (least >= coded_from) {
                choose(segment.first_run, 0, segment.last_run - 1, runs_[segment.last_run - 1].rows, entry.base);
                gather(pages, entry, start, std::min<std::size_t>(entry.count, end - start), nullptr);
            } else {
                for (std::size_t r = segment.first_run; r < segment.last_run; ++r)
                    gather_apart(r, e, start, coded_from);
            }
            start += entry.count;
        }
        flush();
    }

    // The position of a run's first row.
    [[nodiscard]] std::size_t position_of(std::size_t run) const noexcept {
        return parts_[runs_[run].part].asked.position + runs_[run].first;
    }

    // An entry for one run, of which some rows may read it exactly and others coded.
    void gather_apart(std::size_t r, std::size_t e, std::size_t start, std::size_t coded_from) {
        const attention_run& run = runs_[r];
        const auto& pages = parts_[run.part].pages;
        const page_entry& entry = pages.table[e];
        if (run.end <= start)
            return;
        const std::size_t count = std::min<std::size_t>(entry.count, run.end - start), first = position_of(r);
        const std::size_t exactly = std::min(run.rows, coded_from - std::min(coded_from, first));
        if (exactly > 0) {
            expects(e < pages.exact.size() && pages.exact[e] != nullptr, "what a query reads exactly is there");
            choose(r, 0, r, exactly, entry.base);
            gather(pages, entry, start, count, pages.exact[e]);
        }
        if (exactly < run.rows) {
            choose(r, exactly, r, run.rows, entry.base);
            gather(pages, entry, start, count, nullptr);
        }
    }

    // From now on the queries from a row of a run to before a row of another attend, for pages of this base.
    void choose(std::size_t first_run, std::size_t first_row, std::size_t last_run, std::size_t last_row,
                std::int64_t base) {
        const std::size_t group = shape_.group();
        const chosen wanted{query_of(first_run) + first_row * group, query_of(last_run) + last_row * group, base};
        if (wanted == chosen_)
            return;
        flush();
        chosen_ = wanted;
        block_.select(wanted.first, wanted.last);
        load(first_run, last_run + 1, base, wanted.first, wanted.last);
    }

    // Queries [first, last) of these runs rotated by (position - base), scaled.
    void load(std::size_t first_run, std::size_t last_run, std::int64_t base, std::size_t first, std::size_t last) {
        std::span<const float> rotation;
        const query_rows* of = nullptr;
        std::size_t turned = 0; // row that `rotation` is of
        for_queries(
            first_run, last_run, [&](std::size_t q, const query_rows& asked, std::size_t row, std::size_t head, bool) {
                if (q < first || q >= last)
                    return;
                const std::span from(asked.queries + row * asked.stride + head * shape_.head_dim, shape_.head_dim);
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
                if constexpr (page_writer<Codec>)
                    parts_.front().pages.codec->turn_key(scratch_.query);
                block_.place(q, scratch_.query, shape_.scale);
            });
    }

    // The tiles of an entry's first `count` rows that begin in the job's splits; of `exact`, if that is not null.
    void gather(const paged_rows<Codec, Storage>& pages, const page_entry& entry, std::size_t start, std::size_t count,
                const exact_page* exact) {
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
            if constexpr (page_writer<Codec>)
                if (exact != nullptr) {
                    const plain::state rows(pages.codec->shape());
                    push({.keys = rows.keys(exact->bytes(), at, {}),
                          .values = rows.values(exact->bytes(), at, {}),
                          .first = first_lane,
                          .last = std::min<std::size_t>(tile_tokens, last - origin),
                          .position = position});
                    continue;
                }
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

    // The queries that attend now, and the base they are rotated for.
    struct chosen {
        std::size_t first = 0, last = 0;
        std::int64_t base = 0;
        friend bool operator==(const chosen&, const chosen&) = default;
    };

    const attention_shape& shape_;
    std::span<const part> parts_;
    std::span<const attention_run> runs_;
    attention_scratch& scratch_;
    query_block& block_;
    layer_id layer_ = {};
    head_id head_ = {};
    attention_job job_;
    chosen chosen_;
    static constexpr std::size_t at_once = query_block::most_tiles;
    std::array<attention_tile, 2 * at_once> tiles_; // the first waiting_ wait
    std::size_t waiting_ = 0;
    std::size_t taken_ = 0;
};

} // namespace detail

} // namespace kvcache
