// SPDX-License-Identifier: MIT
#pragma once

// Longer than 300 lines: one walk over pages that are read in place, decoded, exact or woven.

#include <kvcache/attention/attention_plan.hpp>
#include <kvcache/attention/attention_scratch.hpp>
#include <kvcache/attention/paged_rows.hpp>
#include <kvcache/attention/query_block.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/plain.hpp>
#include <kvcache/core/contract.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>

namespace kvcache {

namespace detail {

/// Whether a codec's tiles lie in the page, so that looking at one costs nothing.
template <class Codec>
inline constexpr bool reads_in_place = requires {
    requires Codec::in_place;
};

/// Whether a codec says how a tile is coded: both sides, or neither.
template <class Codec>
inline constexpr bool gives_codes = requires(const Codec c, std::span<const std::byte> bytes, page_tile at) {
    c.codes(bytes, at);
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
            for (std::size_t i = 0; i < run.rows * shape_.group(); ++i) {
                float* own = nullptr;
                if (run.partials != attention_run::none) {
                    own = partials + (run.partials + i * splits) * state;
                    for (std::size_t s = job_.first_split; s < std::min(job_.last_split, splits); ++s)
                        softmax_state(own + s * state, value_width(shape_.head_dim)).clear();
                }
                block_.add(parts_[run.part].asked.position_of(run.first + i / shape_.group()), own);
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
        if (pages.woven)
            return walk_woven(segment, end);
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
        if constexpr (gives_codes<Codec>)
            block_.want_whole(detail::wants_coded_queries(
                pages.codec->codes(pages.storage->bytes(pages.table[segment.first].page), {}).keys.format));
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
        return parts_[runs_[run].part].asked.position_of(runs_[run].first);
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

    // Entries of a woven table, a block of positions at a time: in a block the tiles of one base come together, and
    // what is left of a tile comes once, with holes. The order is a function of the table alone.
    void walk_woven(const attention_segment& segment, std::size_t end) {
        const auto& pages = parts_[segment.part].pages;
        std::size_t start = segment.position, block = 0;
        std::optional<std::int64_t> loaded;
        for (std::size_t e = segment.first; e < segment.last && start < end; start += pages.table[e++].count) {
            const page_entry& entry = pages.table[e];
            const std::size_t count = std::min<std::size_t>(entry.count, end - start), last = entry.first + count;
            for (std::size_t row = entry.first; row < last;) {
                const std::size_t tile = row / tile_tokens, behind = std::min(last, (tile + 1) * tile_tokens);
                const std::size_t position = start + row - entry.first;
                if (position / attention_plan::woven_block != block) {
                    take_block(segment, block, loaded);
                    block = position / attention_plan::woven_block;
                }
                const std::size_t split = position / query_block::split;
                if (split >= job_.first_split && split < job_.last_split)
                    add_woven(entry, tile, row % tile_tokens, behind - row, position);
                row = behind;
            }
        }
        take_block(segment, block, loaded);
        flush();
    }

    void add_woven(const page_entry& entry, std::size_t tile, std::size_t lane, std::size_t count,
                   std::size_t position) {
        const std::uint32_t lanes = ((1u << count) - 1u) << lane;
        const auto origin = static_cast<std::int64_t>(position) - static_cast<std::int64_t>(lane);
        for (woven_tile& known : scratch_.woven)
            if (known.page == entry.page && known.tile == tile && known.base == entry.base && known.origin == origin) {
                known.lanes |= lanes;
                return;
            }
        scratch_.woven.push_back({entry.page, static_cast<std::uint32_t>(tile), lanes, entry.base, origin});
    }

    // By ascending base in one block and descending base in the next, so that queries are turned half as often.
    void take_block(const attention_segment& segment, std::size_t block, std::optional<std::int64_t>& loaded) {
        std::ranges::sort(scratch_.woven, [&](const woven_tile& a, const woven_tile& b) {
            if (a.base != b.base)
                return block % 2 == 0 ? a.base < b.base : a.base > b.base;
            return a.position() < b.position();
        });
        for (const woven_tile& one : scratch_.woven) {
            if (loaded != one.base) {
                flush();
                load(segment.first_run, segment.last_run, one.base, 0, block_.size());
                loaded = one.base;
            }
            push_woven(parts_[segment.part].pages, one);
        }
        scratch_.woven.clear();
    }

    void push_woven(const paged_rows<Codec, Storage>& pages, const woven_tile& one) {
        make_room();
        const std::size_t slot = taken_ % tiles_.size(), keys = std::size_t{shape_.head_dim} * tile_tokens;
        const auto scratch =
            std::span(scratch_.tiles)
                .subspan(slot * (scratch_.tiles.size() / tiles_.size()), scratch_.tiles.size() / tiles_.size());
        const std::span<const std::byte> bytes = pages.storage->bytes(one.page);
        const page_tile at{layer_, head_, one.tile};
        attention_tile tile{.keys = pages.codec->keys(bytes, at, scratch.first(keys)),
                            .values = pages.codec->values(bytes, at, scratch.subspan(keys)),
                            .first = static_cast<std::size_t>(std::countr_zero(one.lanes)),
                            .last = static_cast<std::size_t>(std::bit_width(one.lanes))};
        tile.position = static_cast<std::size_t>(one.position());
        if (static_cast<std::size_t>(std::popcount(one.lanes)) != tile.last - tile.first) {
            float* holes = scratch_.holes.data() + slot * tile_tokens;
            for (std::size_t lane = 0; lane < tile_tokens; ++lane)
                holes[lane] = (one.lanes >> lane & 1u) != 0 ? 0.0f : -std::numeric_limits<float>::infinity();
            tile.holes = holes;
        }
        ++taken_;
        push(tile);
    }

    // Queries [first, last) of these runs rotated by (position - base), scaled: turned to their positions, and back by
    // the base.
    void load(std::size_t first_run, std::size_t last_run, std::int64_t base, std::size_t first, std::size_t last) {
        if (shape_.rotation != nullptr && base != 0)
            shape_.rotation->fill(-base, scratch_.rotation);
        for_queries(
            first_run, last_run, [&](std::size_t q, const query_rows& asked, std::size_t row, std::size_t head, bool) {
                if (q < first || q >= last)
                    return;
                const std::span from(asked.queries + row * asked.stride + head * shape_.head_dim, shape_.head_dim);
                if (shape_.rotation == nullptr)
                    std::ranges::copy(from, scratch_.query.begin());
                else
                    rotate_head(from, {asked.rotations + row * shape_.head_dim, shape_.head_dim}, scratch_.query);
                if (shape_.rotation != nullptr && base != 0)
                    rotate_head(scratch_.query, scratch_.rotation, scratch_.query);
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
        for (std::uint32_t tile = entry.first / tile_tokens; tile * tile_tokens < last; ++tile) {
            const std::size_t origin = std::size_t{tile} * tile_tokens;
            const std::size_t first_lane = origin < entry.first ? entry.first - origin : 0;
            const std::size_t position = start + origin + first_lane - entry.first;
            if (const std::size_t split = position / query_block::split;
                split < job_.first_split || split >= job_.last_split)
                continue;
            make_room(); // first: the oldest tiles' scratch is decoded into next
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
            attention_tile& made = next();
            made.keys = made.values = made.holes = nullptr;
            made.first = first_lane;
            made.last = std::min<std::size_t>(tile_tokens, last - origin);
            made.position = position;
            if constexpr (gives_codes<Codec>)
                made.codes = pages.codec->codes(bytes, at);
            if (!gives_codes<Codec> || made.codes.keys.format == code_format::none ||
                made.codes.values.format == code_format::none)
                decode(pages, bytes, at, made);
            push_next();
        }
    }

    void decode(const paged_rows<Codec, Storage>& pages, std::span<const std::byte> bytes, page_tile at,
                attention_tile& to) {
        const std::size_t keys = std::size_t{shape_.head_dim} * tile_tokens;
        const auto scratch =
            std::span(scratch_.tiles).subspan(taken_++ % tiles_.size() * (scratch_.tiles.size() / tiles_.size()));
        to.codes = {};
        to.keys = pages.codec->keys(bytes, at, scratch.first(keys));
        to.values = pages.codec->values(bytes, at, scratch.subspan(keys));
    }

    // Tiles wait until as many follow them as go together: those are fetched from memory meanwhile.
    void make_room() {
        if (waiting_ < tiles_.size())
            return;
        attend(oldest_, at_once);
        oldest_ = at_once - oldest_;
        waiting_ -= at_once;
    }

    void push(const attention_tile& tile) {
        next() = tile;
        push_next();
    }

    // Where the next tile is made, in place: a tile that is copied waits for what was just written into it.
    [[nodiscard]] attention_tile& next() noexcept { return tiles_[(oldest_ + waiting_) % tiles_.size()]; }

    void push_next() {
        attention_tile& tile = next();
        tile.ahead_keys = tile.ahead_values = nullptr;
        tile.ahead_key_codes = tile.ahead_value_codes = nullptr;
        if (waiting_ >= at_once) {
            attention_tile& before = tiles_[oldest_ + waiting_ - at_once];
            if (reads_in_place<Codec>) {
                before.ahead_keys = tile.keys;
                before.ahead_values = tile.values;
                tile_fetch::announce(tile.keys, tile.values);
            }
            if (gives_codes<Codec> && tile.codes.keys.format != code_format::none) {
                before.ahead_key_codes = tile.codes.keys.codes;
                before.ahead_value_codes = tile.codes.values.codes;
            }
        }
        ++waiting_;
    }

    void flush() {
        const std::size_t first = std::min(waiting_, at_once);
        attend(oldest_, first);
        attend(at_once - oldest_, waiting_ - first);
        waiting_ = oldest_ = 0;
    }

    void attend(std::size_t first, std::size_t count) {
        block_.template attend<gives_codes<Codec>>(std::span<const attention_tile>(tiles_).subspan(first, count));
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
    std::array<attention_tile, 2 * at_once> tiles_; // two halves by turns; waiting_ wait, from oldest_ on
    std::size_t oldest_ = 0;                        // the first of either half
    std::size_t waiting_ = 0;
    std::size_t taken_ = 0;
};

} // namespace detail

} // namespace kvcache
