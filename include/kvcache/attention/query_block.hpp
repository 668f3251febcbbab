// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/coded_tiles.hpp>
#include <kvcache/attention/packed_queries.hpp>
#include <kvcache/attention/query_states.hpp>
#include <kvcache/attention/tile_kernels.hpp>
#include <kvcache/attention/tile_weights.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/side_codes.hpp>
#include <kvcache/core/compiled.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

namespace kvcache::inline KVCACHE_ABI {

/// Queries on one key and value head that walk tiles together, each with a running softmax of its own. What a query
/// computes is a chain of its own, so the bits do not depend on which queries share a block, nor on how many tiles come
/// at once.
///
/// Scores: one chain of fused multiply-adds over head_dim. Softmax: rescaled a tile at a time, sums kept in 16 lanes
/// and folded once. At every multiple of `split` positions a new partial softmax begins; partials merge in ascending
/// order, or are kept apart for somebody who merges them (so that splits may run on several threads).
class query_block {
public:
    static constexpr std::size_t split = 1024; ///< Positions; part of the numeric contract.
    static constexpr std::size_t most_tiles = detail::most_tiles;

    /// A block of up to `capacity` queries. All its memory is taken here.
    query_block(std::size_t head_dim, std::size_t capacity)
        : head_dim_(head_dim),
          width_(value_width(head_dim)),
          packed_(head_dim, capacity),
          states_(width_, capacity),
          coded_(head_dim, capacity) {}

    [[nodiscard]] std::size_t capacity() const noexcept { return states_.capacity(); }
    [[nodiscard]] std::size_t size() const noexcept { return states_.size(); }

    void clear() noexcept {
        states_.clear();
        select(0, 0);
    }

    /// Adds a query that sees the positions up to `position`. Its partials go to `partials`, one for each split, or are
    /// merged here if that is null. (splits, softmax_state::numbers(width))
    void add(std::size_t position, float* partials = nullptr) { states_.add(position, partials); }

    /// From now on the queries [first, last) attend, once each is placed.
    void select(std::size_t first, std::size_t last) noexcept { packed_.select(first, last); }

    /// Gives a selected query its numbers, rotated, and multiplies them by `scale`. (head_dim)
    /// `Coded`: as `attend` has it.
    template <bool Coded = false>
    void place(std::size_t q, std::span<const float> numbers, float scale) {
        packed_.place(q, numbers, scale);
        if constexpr (Coded)
            if (wants_whole_)
                coded_.place(q - packed_.first(), numbers.data(), scale);
    }

    /// Whether queries that are placed from now on are to meet keys of whole numbers.
    void want_whole(bool wanted) noexcept { wants_whole_ = wanted; }

    /// The selected queries take in tiles, which ascend in position from split to split, and within a call.
    /// `Coded`: some may be read as they are coded.
    template <bool Coded = false>
    void attend(std::span<const attention_tile> tiles) {
        const std::size_t groups = packed_.groups();
        while (!tiles.empty()) {
            const std::size_t region = tiles.front().position / split;
            std::size_t count = 1;
            while (count < std::min(tiles.size(), most_tiles) && tiles[count].position / split == region &&
                   (!Coded || alike(tiles[count], tiles.front())))
                ++count;
            for (std::size_t q = packed_.first(); q < packed_.last(); ++q)
                states_.enter(q, region);
            if constexpr (Coded)
                if (tiles.front().codes.keys.format != code_format::none) {
                    for (std::size_t g = 0; g < groups; ++g) {
                        const auto [begin, end] = packed_.group(g);
                        take_coded(coded_, tiles.first(count), begin, end - begin);
                    }
                    tiles = tiles.subspan(count);
                    continue;
                }
            const bool ahead = std::ranges::all_of(tiles.first(count), [](const auto& t) { return t.ahead_keys; });
            const std::size_t fetching = ahead ? std::min(groups, count) : 0;
            for (std::size_t g = 0; g < groups; ++g) {
                const auto [begin, end] = packed_.group(g);
                const bool fetches = g < fetching;
                dispatch<detail::most_together>(fetches ? fetched_by(g, fetching, tiles.first(count))
                                                        : tiles.first(count),
                                                begin, end - begin, fetches);
            }
            tiles = tiles.subspan(count);
        }
    }
    template <bool Coded = false>
    void attend(const attention_tile& tile) {
        attend<Coded>(std::span(&tile, 1));
    }

    /// Ends a query that merges here: writes its output. (head_dim)
    void finish(std::size_t q, float* out) { states_.finish(q, head_dim_, out); }

    /// Ends the partial softmax that a query is in.
    void leave(std::size_t q) { states_.leave(q); }

private:
    // The tiles, and what a group fetches meanwhile: its share of all that comes, else what it has.
    [[nodiscard]] std::span<const attention_tile> fetched_by(std::size_t group, std::size_t groups,
                                                             std::span<const attention_tile> tiles) {
        if (groups == 1)
            return tiles; // a copy would wait for what was just written into them
        std::ranges::copy(tiles, fetching_.begin());
        for (std::size_t t = 0; t < tiles.size(); ++t)
            if (t * groups / tiles.size() != group) {
                fetching_[t].ahead_keys = tiles[t].keys;
                fetching_[t].ahead_values = tiles[t].values;
            }
        return std::span(fetching_).first(tiles.size());
    }

    // `ahead`: what comes behind the tiles is fetched meanwhile.
    template <std::size_t N>
    void dispatch(std::span<const attention_tile> tiles, std::size_t begin, std::size_t count, bool ahead);

    // N selected queries from `begin` on, over up to most_tiles tiles of one split. A function of its own, that GCC has
    // room to inline the kernels in.
    template <std::size_t N>
    [[gnu::noinline]] void take(std::span<const attention_tile> tiles, std::size_t begin, bool ahead) {
        constexpr bool fetches = N > 1 || detail::wide_vectors; // else the machine's own fetching suffices
        const std::size_t q = packed_.first() + begin;
        const auto limits = states_.limits_of(q, N);
        const auto seen = limits.seen(tiles);
        const std::size_t count = seen.size(), whole = limits.whole(seen);

        const float* queries = packed_.numbers(begin);
        constexpr std::size_t at_once = detail::tiles_together(N);
        detail::tile_fetch fetch(tiles, head_dim_);
        std::size_t t = 0;
        for (; t + at_once <= count; t += at_once)
            if (float* const scores = weights_.lanes[0][t]; ahead)
                detail::score<N, at_once, fetches>(queries, head_dim_, tiles.data() + t, scores, fetch);
            else
                detail::score<N, at_once, false>(queries, head_dim_, tiles.data() + t, scores, fetch);
        for (; at_once > 1 && t < count; ++t)
            detail::score<N, 1, false>(queries, head_dim_, tiles.data() + t, weights_.lanes[0][t], fetch);

        float* const sums = states_.running(q).sums();
        if (ahead) {
            weigh<fetches>(seen, whole, q, N, fetch);
            detail::add_values<N, fetches>(tiles.data(), 0, whole, width_, weights_, 0, sums, states_.stride(), fetch);
        } else {
            weigh<false>(seen, whole, q, N, fetch);
            detail::add_values<N, false>(tiles.data(), 0, whole, width_, weights_, 0, sums, states_.stride(), fetch);
        }
        for (t = whole; t < count; ++t)
            add_ragged<N>(tiles[t], t, q, limits.least);
    }

    // The same for tiles that are read as they are coded.
    template <std::size_t Most>
    void take_coded(detail::coded_tiles<Most>& coded, std::span<const attention_tile> tiles, std::size_t begin,
                    std::size_t group) {
        const std::size_t q = packed_.first() + begin, stride = states_.stride();
        const auto limits = states_.limits_of(q, group);
        tiles = limits.seen(tiles);
        if (tiles.empty())
            return;
        const auto ahead = begin == 0 ? detail::code_fetch(tiles, width_ / 16) : detail::code_fetch();
        coded.score(tiles, packed_.numbers(begin), begin, group, weights_.lanes[0][0], ahead);
        detail::tile_fetch nothing(tiles, 0);
        weigh<false>(tiles, limits.whole(tiles), q, group, nothing);
        for (std::size_t t = 0, end; t < tiles.size(); t = end) {
            end = t + 1;
            if (limits.see_whole(tiles[t])) {
                while (end < tiles.size() && limits.see_whole(tiles[end]) &&
                       detail::coded_tiles<Most>::go_together(tiles[t].codes.values, tiles[end].codes.values))
                    ++end;
                coded.add(tiles, t, end, weights_, 0, group, states_.running(q).sums(), stride, ahead);
                continue;
            }
            for (std::size_t i = 0; i < group; ++i)
                if (detail::seen(tiles[t], states_.limit(q + i)) > tiles[t].first)
                    coded.add(tiles, t, end, weights_, i, 1, states_.running(q + i).sums(), stride, ahead);
        }
    }

    // Whether two tiles are read in one way.
    [[nodiscard]] static bool alike(const attention_tile& a, const attention_tile& b) noexcept {
        return a.codes.keys.format == b.codes.keys.format && a.codes.keys.table == b.codes.keys.table;
    }

    // A tile that some see less of: the lanes of all together, then the others query by query.
    template <std::size_t N>
    void add_ragged(const attention_tile& tile, std::size_t t, std::size_t q, std::size_t least) {
        const std::size_t stride = states_.stride();
        attention_tile at[most_tiles];
        detail::tile_fetch ahead({at, 1}, width_); // fetches nothing
        at[t] = tile;
        at[t].last = detail::seen(tile, least);
        detail::add_values<N, false>(at, t, t + 1, width_, weights_, 0, states_.running(q).sums(), stride, ahead);
        at[t].first = at[t].last;
        weights_.rescaled[t] = false;
        for (std::size_t i = 0; i < N; ++i) {
            at[t].last = detail::seen(tile, states_.limit(q + i));
            if (at[t].last > at[t].first)
                detail::add_values<1, false>(at, t, t + 1, width_, weights_, i, states_.running(q + i).sums(), stride,
                                             ahead);
        }
    }

    // Scores of `count` queries with tiles, of which all see `whole` to their ends, to weights, in place; `Ahead`: with
    // each query some of what comes is asked for.
    template <bool Ahead>
    [[gnu::noinline, gnu::flatten]] void weigh(std::span<const attention_tile> tiles, std::size_t whole, std::size_t q,
                                               std::size_t count, detail::tile_fetch& ahead) {
        const auto meanwhile = [&]() KVCACHE_INLINE {
            if constexpr (Ahead)
                ahead.ask_early();
        };
        std::ranges::fill(weights_.rescaled, false);
        // Two queries do not fill what waits for their exponentials.
        if (count > 2 && whole == most_tiles && std::ranges::all_of(tiles, detail::is_full)) {
            detail::weigh_full(
                weights_, count, [&](std::size_t i) KVCACHE_INLINE { return states_.running(q + i); }, meanwhile);
            return;
        }
        for (std::size_t i = 0; i < count; ++i, meanwhile())
            for (std::size_t t = 0; t < tiles.size(); ++t)
                detail::weigh(weights_, i, t, tiles[t], states_.limit(q + i), states_.running(q + i));
    }

    std::size_t head_dim_;
    std::size_t width_;
    detail::packed_queries packed_;
    detail::query_states states_;
    std::array<attention_tile, most_tiles> fetching_;
    detail::tile_weights weights_;
    detail::coded_tiles<detail::queries_of_codes> coded_;
    bool wants_whole_ = false;
};

template <std::size_t N>
void query_block::dispatch(std::span<const attention_tile> tiles, std::size_t begin, std::size_t count, bool ahead) {
    if (count == N)
        take<N>(tiles, begin, ahead);
    else if constexpr (N > 1)
        dispatch<N - 1>(tiles, begin, count, ahead);
}

#if KVCACHE_COMPILED
extern template void query_block::dispatch<detail::most_together>(std::span<const attention_tile>, std::size_t,
                                                                  std::size_t, bool);
#endif

} // namespace kvcache
