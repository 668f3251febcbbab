// SPDX-License-Identifier: MIT
#pragma once

// Longer than 300 lines: one block, whose tiles are numbers or codes.

#include <kvcache/attention/coded_tiles.hpp>
#include <kvcache/attention/softmax_state.hpp>
#include <kvcache/attention/tile_kernels.hpp>
#include <kvcache/attention/tile_weights.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/core/aligned.hpp>
#include <kvcache/core/compiled.hpp>
#include <kvcache/core/contract.hpp>
#include <kvcache/kernel/math.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

namespace kvcache {

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
          stride_(softmax_state::numbers(width_)),
          capacity_(capacity),
          packed_(capacity * head_dim),
          states_(2 * capacity * stride_),
          coded_(head_dim, capacity) {
        asked_.reserve(capacity);
    }

    [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
    [[nodiscard]] std::size_t size() const noexcept { return asked_.size(); }

    void clear() noexcept {
        asked_.clear();
        select(0, 0);
    }

    /// Adds a query that sees the positions up to `position`. Its partials go to `partials`, one for each split, or are
    /// merged here if that is null. (splits, softmax_state::numbers(width))
    void add(std::size_t position, float* partials = nullptr) {
        expects(asked_.size() < capacity_, "a block holds as many queries as its capacity");
        asked_.push_back({.limit = position, .partials = partials});
        running(asked_.size() - 1).clear();
        merged(asked_.size() - 1).forget();
    }

    /// From now on the queries [first, last) attend, once each is placed.
    void select(std::size_t first, std::size_t last) noexcept {
        first_ = first;
        last_ = last;
        groups_ = (last - first + detail::most_together - 1) / detail::most_together;
        each_ = groups_ == 0 ? 0 : (last - first) / groups_;
        longer_ = last - first - groups_ * each_;
    }

    /// Gives a selected query its numbers, rotated, and multiplies them by `scale`. (head_dim)
    void place(std::size_t q, std::span<const float> numbers, float scale) {
        const std::size_t selected = q - first_, of_longer = longer_ * (each_ + 1);
        const std::size_t size = selected < of_longer ? each_ + 1 : each_; // of its group
        const std::size_t place = (selected < of_longer ? selected : selected - of_longer) % size;
        float* to = packed_.data() + (selected - place) * head_dim_ + place;
        const float* from = numbers.data();
        for (std::size_t d = 0, dim = head_dim_; d < dim; ++d)
            to[d * size] = from[d] * scale;
        if (wants_whole_)
            coded_.place(selected, from, scale);
    }

    /// Whether queries that are placed from now on are to meet keys of whole numbers.
    void want_whole(bool wanted) noexcept { wants_whole_ = wanted; }

    /// The selected queries take in tiles, which ascend in position from split to split, and within a call.
    /// `Coded`: some may be read as they are coded.
    template <bool Coded = false>
    void attend(std::span<const attention_tile> tiles) {
        while (!tiles.empty()) {
            const std::size_t region = tiles.front().position / split;
            std::size_t count = 1;
            while (count < std::min(tiles.size(), most_tiles) && tiles[count].position / split == region &&
                   (!Coded || alike(tiles[count], tiles.front())))
                ++count;
            for (std::size_t q = first_; q < last_; ++q)
                if (asked_[q].region != region) {
                    leave(q);
                    asked_[q].region = region;
                }
            if constexpr (Coded)
                if (tiles.front().codes.keys.format != code_format::none) {
                    for (std::size_t g = 0; g < groups_; ++g) {
                        const auto [begin, end] = together(g);
                        take_coded(tiles.first(count), begin, end - begin);
                    }
                    tiles = tiles.subspan(count);
                    continue;
                }
            const bool ahead = std::ranges::all_of(tiles.first(count), [](const auto& t) { return t.ahead_keys; });
            const std::size_t fetching = ahead ? std::min(groups_, count) : 0;
            for (std::size_t g = 0; g < groups_; ++g) {
                const auto [begin, end] = together(g);
                if (g < fetching)
                    dispatch<detail::most_together, true>(fetched_by(g, fetching, tiles.first(count)), begin,
                                                          end - begin);
                else
                    dispatch<detail::most_together, false>(tiles.first(count), begin, end - begin);
            }
            tiles = tiles.subspan(count);
        }
    }
    void attend(const attention_tile& tile) { attend(std::span(&tile, 1)); }

    /// Ends a query that merges here: writes its output. (head_dim)
    void finish(std::size_t q, float* out) {
        leave(q);
        merged(q).finish(head_dim_, out);
    }

    /// Ends the partial softmax that a query is in.
    void leave(std::size_t q) {
        const softmax_state from = running(q);
        if (from.empty())
            return;
        if (float* partials = asked_[q].partials)
            std::copy_n(from.sums(), stride_, partials + asked_[q].region * stride_);
        else
            merged(q).merge(from);
        from.clear();
    }

private:
    struct question {
        std::size_t limit = 0;     // the last position it sees
        std::size_t region = 0;    // the split its running softmax is of
        float* partials = nullptr; // (splits, stride)
    };
    struct range {
        std::size_t begin, end; // among the selected
    };

    [[nodiscard]] softmax_state running(std::size_t q) { return {states_.data() + q * stride_, width_}; }
    [[nodiscard]] softmax_state merged(std::size_t q) { return {states_.data() + (capacity_ + q) * stride_, width_}; }

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

    [[nodiscard]] range together(std::size_t group) const noexcept {
        const std::size_t begin = group * each_ + std::min(group, longer_);
        return {begin, begin + each_ + (group < longer_ ? 1 : 0)};
    }

    template <std::size_t N, bool Ahead>
    KVCACHE_ONCE void dispatch(std::span<const attention_tile> tiles, std::size_t begin, std::size_t count);

    // N selected queries from `begin` on, over up to most_tiles tiles of one split.
    template <std::size_t N, bool Ahead>
    void take(std::span<const attention_tile> tiles, std::size_t begin) {
        const std::size_t q = first_ + begin;
        std::size_t least = asked_[q].limit, most = least;
        for (std::size_t i = 1; i < N; ++i) {
            least = std::min(least, asked_[q + i].limit);
            most = std::max(most, asked_[q + i].limit);
        }
        std::size_t count = tiles.size();
        while (count > 0 && tiles[count - 1].position > most) // seen by none
            --count;
        std::size_t whole = count;
        while (whole > 0 && tiles[whole - 1].end() > least + 1) // not seen to its end by all
            --whole;

        const float* queries = packed_.data() + begin * head_dim_;
        constexpr std::size_t at_once = detail::tiles_together(N);
        detail::tile_fetch ahead(tiles, head_dim_);
        std::size_t t = 0;
        for (; t + at_once <= count; t += at_once)
            detail::score<N, at_once, Ahead>(queries, head_dim_, tiles.data() + t, weights_.lanes[0][t], ahead);
        if constexpr (at_once > 1)
            for (; t < count; ++t)
                detail::score<N, 1, Ahead>(queries, head_dim_, tiles.data() + t, weights_.lanes[0][t], ahead);

        weigh(tiles.first(count), whole, q, N, [&]() KVCACHE_INLINE {
            if constexpr (Ahead)
                ahead.ask_early();
        });

        float* sums = running(q).sums();
        detail::add_values<N, Ahead>(tiles.data(), 0, whole, width_, weights_, 0, sums, stride_, ahead);
        for (t = whole; t < count; ++t)
            add_ragged<N>(tiles[t], t, q, least);
    }

    // The same for tiles that are read as they are coded.
    void take_coded(std::span<const attention_tile> tiles, std::size_t begin, std::size_t group) {
        const std::size_t q = first_ + begin;
        const auto [least, most] = std::ranges::minmax(std::span(asked_).subspan(q, group), {}, &question::limit);
        std::size_t count = tiles.size();
        while (count > 0 && tiles[count - 1].position > most.limit)
            --count;
        if (count == 0)
            return;
        const auto ahead = begin == 0 ? detail::code_fetch(tiles.first(count), width_ / 16) : detail::code_fetch();
        coded_.score<detail::queries_of_codes>(tiles.first(count), packed_.data() + begin * head_dim_, begin, group,
                                               weights_.lanes[0][0], ahead);
        std::size_t whole = count;
        while (whole > 0 && tiles[whole - 1].end() > least.limit + 1)
            --whole;
        weigh(tiles.first(count), whole, q, group, [] {});
        for (std::size_t t = 0, end; t < count; t = end) {
            end = t + 1;
            if (tiles[t].end() <= least.limit + 1) {
                while (end < count && tiles[end].end() <= least.limit + 1 &&
                       detail::coded_tiles::go_together(tiles[t].codes.values, tiles[end].codes.values))
                    ++end;
                coded_.add<detail::queries_of_codes>(tiles, t, end, weights_, 0, group, running(q).sums(), stride_,
                                                     ahead);
                continue;
            }
            for (std::size_t i = 0; i < group; ++i)
                if (detail::seen(tiles[t], asked_[q + i].limit) > tiles[t].first)
                    coded_.add<detail::queries_of_codes>(tiles, t, end, weights_, i, 1, running(q + i).sums(), stride_,
                                                         ahead);
        }
    }

    // Whether two tiles are read in one way.
    [[nodiscard]] static bool alike(const attention_tile& a, const attention_tile& b) noexcept {
        return a.codes.keys.format == b.codes.keys.format && a.codes.keys.table == b.codes.keys.table;
    }

    // A tile that some see less of: the lanes of all together, then the others query by query.
    template <std::size_t N>
    void add_ragged(const attention_tile& tile, std::size_t t, std::size_t q, std::size_t least) {
        attention_tile at[most_tiles];
        detail::tile_fetch ahead({at, 1}, width_); // fetches nothing
        at[t] = tile;
        at[t].last = detail::seen(tile, least);
        detail::add_values<N, false>(at, t, t + 1, width_, weights_, 0, running(q).sums(), stride_, ahead);
        at[t].first = at[t].last;
        weights_.rescaled[t] = false;
        for (std::size_t i = 0; i < N; ++i) {
            at[t].last = detail::seen(tile, asked_[q + i].limit);
            if (at[t].last > at[t].first)
                detail::add_values<1, false>(at, t, t + 1, width_, weights_, i, running(q + i).sums(), stride_, ahead);
        }
    }

    // Scores of `count` queries with tiles, of which all see `whole` to their ends, to weights, in place; `meanwhile`
    // is called once a query.
    template <class Meanwhile>
    [[gnu::flatten]] void weigh(std::span<const attention_tile> tiles, std::size_t whole, std::size_t q,
                                std::size_t count, const Meanwhile& meanwhile) {
        std::ranges::fill(weights_.rescaled, false);
        // Two queries do not fill what waits for their exponentials.
        if (count > 2 && whole == most_tiles && std::ranges::all_of(tiles, detail::is_full)) {
            detail::weigh_full(
                weights_, count, [&](std::size_t i) KVCACHE_INLINE { return running(q + i); }, meanwhile);
            return;
        }
        for (std::size_t i = 0; i < count; ++i, meanwhile())
            for (std::size_t t = 0; t < tiles.size(); ++t)
                detail::weigh(weights_, i, t, tiles[t], asked_[q + i].limit, running(q + i));
    }

    std::size_t head_dim_;
    std::size_t width_;
    std::size_t stride_; // numbers of a softmax state
    std::size_t capacity_;
    std::size_t first_ = 0; // of the selected
    std::size_t last_ = 0;
    // The selected go through the kernels in groups of nearly one size: 8 as 4 + 4, not 6 + 2.
    std::size_t groups_ = 0;
    std::size_t each_ = 0;   // queries a group
    std::size_t longer_ = 0; // groups that have one more
    std::vector<question> asked_;
    aligned_vector<float> packed_; // the selected, a group at a time: (head_dim, queries of the group)
    aligned_vector<float> states_; // running, then merged: (2, capacity, stride)
    std::array<attention_tile, most_tiles> fetching_;
    detail::tile_weights weights_;
    detail::coded_tiles coded_;
    bool wants_whole_ = false;
};

template <std::size_t N, bool Ahead>
void query_block::dispatch(std::span<const attention_tile> tiles, std::size_t begin, std::size_t count) {
    if (count == N)
        take<N, Ahead && (N > 1 || detail::wide_vectors)>(tiles, begin); // else the machine's own fetching suffices
    else if constexpr (N > 1)
        dispatch<N - 1, Ahead>(tiles, begin, count);
}

#if defined(KVCACHE_COMPILED)
extern template void query_block::dispatch<detail::most_together, true>(std::span<const attention_tile>, std::size_t,
                                                                        std::size_t);
extern template void query_block::dispatch<detail::most_together, false>(std::span<const attention_tile>, std::size_t,
                                                                         std::size_t);
#endif

} // namespace kvcache
