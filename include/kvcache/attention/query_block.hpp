// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/quantized_tiles.hpp>
#include <kvcache/attention/softmax_state.hpp>
#include <kvcache/attention/tile_kernels.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/side_coder.hpp>
#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/core/platform/machine.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/kernel/strided_rows.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

/// The selected queries of a block in the layout of the kernels: in groups of nearly equal size (8 as 4 + 4, not 6 +
/// 2), so that the values of a group at one element of head_dim are contiguous.
class packed_queries {
public:
    /// Memory for up to `capacity` queries.
    packed_queries(std::size_t head_dim, std::size_t capacity) : head_dim_(head_dim), numbers_(capacity * head_dim) {}

    /// Selects the queries [first, last). Each has to be placed before it is used.
    void select(std::size_t first, std::size_t last) noexcept {
        first_ = first;
        last_ = last;
        groups_ = (last - first + max_queries - 1) / max_queries;
        each_ = groups_ == 0 ? 0 : (last - first) / groups_;
        longer_ = last - first - groups_ * each_;
    }

    [[nodiscard]] std::size_t first() const noexcept { return first_; }
    [[nodiscard]] std::size_t last() const noexcept { return last_; }
    [[nodiscard]] std::size_t groups() const noexcept { return groups_; }

    /// Queries [begin, end) of the selected ones.
    struct range {
        std::size_t begin, end;
    };
    [[nodiscard]] range group(std::size_t g) const noexcept {
        const std::size_t begin = g * each_ + std::min(g, longer_);
        return {begin, begin + each_ + (g < longer_ ? 1 : 0)};
    }
    /// Queries of the group that begins at `begin`. (head_dim, queries of the group)
    [[nodiscard]] const float* numbers(std::size_t begin) const noexcept { return numbers_.data() + begin * head_dim_; }

    /// Sets the values of a selected query, times `scale`. (head_dim)
    void place(std::size_t q, std::span<const float> numbers, float scale) noexcept {
        const std::size_t selected = q - first_, of_longer = longer_ * (each_ + 1);
        const std::size_t size = selected < of_longer ? each_ + 1 : each_; // of its group
        const std::size_t place = (selected < of_longer ? selected : selected - of_longer) % size;
        float* to = numbers_.data() + (selected - place) * head_dim_ + place;
        const float* from = numbers.data();
        for (std::size_t d = 0, dim = head_dim_; d < dim; ++d)
            to[d * size] = from[d] * scale;
    }

private:
    std::size_t head_dim_;
    std::size_t first_ = 0; // first selected query
    std::size_t last_ = 0;
    std::size_t groups_ = 0;
    std::size_t each_ = 0;          // queries of a group
    std::size_t longer_ = 0;        // number of groups with one query more
    aligned_vector<float> numbers_; // by group: (head_dim, queries of the group)
};

/// Visibility limit of each query of a block, its running softmax over the current split, and its merged softmax over
/// earlier splits.
class query_states {
public:
    /// Memory for up to `capacity` queries, with values of `width` floats.
    query_states(std::size_t width, std::size_t capacity)
        : width_(width), stride_(softmax_state::numbers(width)), capacity_(capacity), states_(2 * capacity * stride_) {
        queries_.reserve(capacity);
    }

    [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
    [[nodiscard]] std::size_t size() const noexcept { return queries_.size(); }
    /// Floats from one query's running softmax to the next.
    [[nodiscard]] std::size_t stride() const noexcept { return stride_; }

    void clear() noexcept { queries_.clear(); }

    /// Adds a query that sees the positions [from, limit]. Its partials are written to `partials`, or merged here if
    /// that is null. (splits, stride)
    void add(std::size_t from, std::size_t limit, float* partials) {
        expects(queries_.size() < capacity_, "a block holds as many queries as its capacity");
        queries_.push_back({.sees = {from, limit}, .partials = partials});
        running(queries_.size() - 1).clear();
        merged(queries_.size() - 1).forget();
    }

    [[nodiscard]] seen_positions seen_by(std::size_t q) const noexcept { return queries_[q].sees; }
    /// Whether a query sees a lane of a tile.
    [[nodiscard]] bool sees(std::size_t q, const attention_tile& tile) const noexcept {
        return detail::seen(tile, queries_[q].sees.limit) > first_seen(tile, queries_[q].sees.from);
    }

    /// Smallest and largest last position that some queries see, and their largest first one.
    struct limits {
        std::size_t least, most, from;

        /// Returns the leading tiles that any of the queries sees. Requires: tiles ascend in position.
        [[nodiscard]] std::span<const attention_tile> seen(std::span<const attention_tile> tiles) const noexcept {
            std::size_t count = tiles.size();
            while (count > 0 && tiles[count - 1].position > most)
                --count;
            return tiles.first(count);
        }
        /// Returns whether all queries see all of a tile.
        [[nodiscard]] bool see_whole(const attention_tile& tile) const noexcept {
            return tile.end() <= least + 1 && tile.position >= from;
        }
        /// The tiles [begin, end) that all queries see wholly. Requires: tiles ascend in position.
        struct tile_range {
            std::size_t begin, end;
        };
        [[nodiscard]] tile_range whole(std::span<const attention_tile> tiles) const noexcept {
            std::size_t begin = 0, end = tiles.size();
            while (begin < end && tiles[begin].position < from)
                ++begin;
            while (end > begin && tiles[end - 1].end() > least + 1)
                --end;
            return {begin, end};
        }
    };
    [[nodiscard]] limits limits_of(std::size_t q, std::size_t count) const noexcept {
        limits all{queries_[q].sees.limit, queries_[q].sees.limit, queries_[q].sees.from};
        for (std::size_t i = 1; i < count; ++i) {
            const seen_positions sees = queries_[q + i].sees;
            all.least = std::min(all.least, sees.limit);
            all.most = std::max(all.most, sees.limit);
            all.from = std::max(all.from, sees.from);
        }
        return all;
    }

    [[nodiscard]] softmax_state running(std::size_t q) noexcept { return {states_.data() + q * stride_, width_}; }

    /// Moves a query to a split; its running softmax starts anew if the split changes.
    void enter(std::size_t q, std::size_t split) {
        if (queries_[q].split == split)
            return;
        leave(q);
        queries_[q].split = split;
    }

    /// Ends the current partial softmax of a query.
    void leave(std::size_t q) {
        const softmax_state from = running(q);
        if (from.empty())
            return;
        if (float* partials = queries_[q].partials)
            std::copy_n(from.sums(), stride_, partials + queries_[q].split * stride_);
        else
            merged(q).merge(from);
        from.clear();
    }

    /// Finishes a query that merges here, with its sink unless that is null: writes its output. (head_dim)
    void finish(std::size_t q, const float* sink, std::size_t head_dim, float* out) {
        leave(q);
        if (sink != nullptr)
            merged(q).add_sink(*sink);
        merged(q).finish(head_dim, out);
    }

private:
    struct query {
        seen_positions sees;
        std::size_t split = 0;     // split of its running softmax
        float* partials = nullptr; // (splits, stride)
    };

    [[nodiscard]] softmax_state merged(std::size_t q) noexcept {
        return {states_.data() + (capacity_ + q) * stride_, width_};
    }

    std::size_t width_;
    std::size_t stride_; // floats of a softmax state
    std::size_t capacity_;
    std::vector<query> queries_;
    aligned_vector<float> states_; // running, then merged: (2, capacity, stride)
};

} // namespace detail

/// Queries on one KV head that process tiles together, each with a running softmax of its own. Each query is a chain of
/// operations of its own, so its bits depend neither on the other queries of the block nor on the number of tiles in a
/// call.
///
/// Scores are one chain of fused multiply-adds over head_dim. The softmax is rescaled once a tile, with sums kept in 16
/// lanes and reduced at the end. A new partial softmax begins at every multiple of `split` positions. Partials merge in
/// ascending order, or are written out for a later merge, so that splits can run on several threads.
class query_block {
public:
    static constexpr std::size_t split = 1024; ///< Positions of a split; part of the numeric contract.
    static constexpr std::size_t most_tiles = detail::most_tiles;

    /// A block of up to `capacity` queries. Allocates all its memory here.
    query_block(std::size_t head_dim, std::size_t capacity)
        : head_dim_(head_dim),
          width_(padded_head_dim(head_dim)),
          packed_(head_dim, capacity),
          states_(width_, capacity),
          quantized_(head_dim, capacity) {}

    [[nodiscard]] std::size_t capacity() const noexcept { return states_.capacity(); }
    [[nodiscard]] std::size_t size() const noexcept { return states_.size(); }

    void clear() noexcept {
        states_.clear();
        select(0, 0);
    }

    /// Adds a query that sees the positions from `from` up to `position`. Its partials are written to `partials`, one
    /// for each split, or merged here if that is null. (splits, softmax_state::numbers(width))
    void add(std::size_t position, float* partials = nullptr, std::size_t from = 0) {
        states_.add(from, position, partials);
    }
    /// Sets the soft cap of all scores; 0 for none.
    void set_soft_cap(float cap) noexcept { soft_cap_ = cap; }

    /// Selects the queries [first, last). Each has to be placed before it attends.
    void select(std::size_t first, std::size_t last) noexcept { packed_.select(first, last); }

    /// Sets the values of a selected query, rotated, times `scale`. (head_dim) `Coded`: as in `run`.
    template <bool Coded = false>
    void place(std::size_t q, std::span<const float> numbers, float scale) {
        packed_.place(q, numbers, scale);
        if constexpr (Coded)
            if (wants_whole_)
                quantized_.place(q - packed_.first(), numbers.data(), scale);
    }

    /// Sets whether queries placed from now on are quantized for keys of integers.
    void set_quantize_queries(bool wanted) noexcept { wants_whole_ = wanted; }

    /// The selected queries attend to tiles. Requires: tiles ascend in position within a call, and splits ascend from
    /// call to call. `Coded`: tiles may be in quantized form.
    template <bool Coded = false>
    void run(std::span<const attention_tile> tiles) {
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
                if (tiles.front().codes.keys.format != codec::quant_format::none) {
                    for (std::size_t g = 0; g < groups; ++g) {
                        const auto [begin, end] = packed_.group(g);
                        take_quantized(quantized_, tiles.first(count), begin, end - begin);
                    }
                    tiles = tiles.subspan(count);
                    continue;
                }
            const bool ahead = ranges::all_of(tiles.first(count), [](const auto& t) { return t.ahead_keys; });
            const std::size_t fetching = ahead ? std::min(groups, count) : 0;
            for (std::size_t g = 0; g < groups; ++g) {
                const auto [begin, end] = packed_.group(g);
                const bool fetches = g < fetching;
                dispatch<detail::max_queries>(fetches ? fetched_by(g, fetching, tiles.first(count))
                                                      : tiles.first(count),
                                              begin, end - begin, fetches);
            }
            tiles = tiles.subspan(count);
        }
    }
    template <bool Coded = false>
    void run(const attention_tile& tile) {
        run<Coded>(std::span(&tile, 1));
    }

    /// Finishes a query that merges here: writes its output. (head_dim) `sink`: a logit without a value, or null.
    void finish(std::size_t q, float* out, const float* sink = nullptr) { states_.finish(q, sink, head_dim_, out); }

    /// Ends the current partial softmax of a query.
    void leave(std::size_t q) { states_.leave(q); }

private:
    // The tiles, with the prefetch targets of one group: its share of the next tiles, else the current ones.
    [[nodiscard]] std::span<const attention_tile> fetched_by(std::size_t group, std::size_t groups,
                                                             std::span<const attention_tile> tiles) {
        if (groups == 1)
            return tiles; // a copy would stall on the stores that just wrote the tiles
        ranges::copy(tiles, fetching_.begin());
        for (std::size_t t = 0; t < tiles.size(); ++t)
            if (t * groups / tiles.size() != group) {
                fetching_[t].ahead_keys = tiles[t].keys;
                fetching_[t].ahead_values = tiles[t].values;
            }
        return std::span(fetching_).first(tiles.size());
    }

    // `ahead`: prefetches the tiles that follow meanwhile.
    template <std::size_t N>
    void dispatch(std::span<const attention_tile> tiles, std::size_t begin, std::size_t count, bool ahead);

    // N selected queries from `begin` on, over up to most_tiles tiles of one split. A separate function, so that GCC
    // has the budget to inline the kernels into it.
    template <std::size_t N>
    KVCACHE_NOINLINE void take(std::span<const attention_tile> tiles, std::size_t begin, bool ahead) {
        constexpr bool fetches = N > 1 || detail::wide_vectors; // otherwise the hardware prefetcher suffices
        const std::size_t q = packed_.first() + begin;
        const auto limits = states_.limits_of(q, N);
        const auto seen = limits.seen(tiles);
        const std::size_t count = seen.size();
        const auto whole = limits.whole(seen);

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

        if (soft_cap_ > 0.0f)
            detail::soft_cap_scores(weights_, N, count, soft_cap_);
        const auto all_see = tiles.subspan(whole.begin, whole.end - whole.begin);
        const auto add_whole = [&]<bool Ahead>() KVCACHE_INLINE {
            for (t = 0; t < whole.begin; ++t)
                add_begun(tiles[t], t, q, N);
            detail::add_values<N, Ahead>(all_see, width_, weights_.from(0, whole.begin), sums_from(q), fetch);
        };
        if (ahead) {
            softmax_tile<fetches>(seen, whole, q, N, fetch);
            add_whole.template operator()<fetches>();
        } else {
            softmax_tile<false>(seen, whole, q, N, fetch);
            add_whole.template operator()<false>();
        }
        for (t = whole.end; t < count; ++t)
            add_ragged<N>(tiles[t], t, q, limits.least);
    }

    // The same for tiles in quantized form.
    template <std::size_t Most>
    void take_quantized(detail::quantized_tiles<Most>& quantized, std::span<const attention_tile> tiles,
                        std::size_t begin, std::size_t group) {
        const std::size_t q = packed_.first() + begin;
        const auto limits = states_.limits_of(q, group);
        tiles = limits.seen(tiles);
        if (tiles.empty())
            return;
        const auto ahead = begin == 0 ? detail::code_fetch(tiles, width_ / 16) : detail::code_fetch();
        quantized.score(tiles, packed_.numbers(begin), begin, group, weights_.lanes[0][0], ahead);
        if (soft_cap_ > 0.0f)
            detail::soft_cap_scores(weights_, group, tiles.size(), soft_cap_);
        detail::tile_fetch nothing(tiles, 0);
        softmax_tile<false>(tiles, limits.whole(tiles), q, group, nothing);
        for (std::size_t t = 0, end; t < tiles.size(); t = end) {
            end = t + 1;
            if (limits.see_whole(tiles[t])) {
                while (end < tiles.size() && limits.see_whole(tiles[end]) &&
                       detail::quantized_tiles<Most>::go_together(tiles[t].codes.values, tiles[end].codes.values))
                    ++end;
                quantized.add(tiles.first(end), t, weights_.from(0, 0), group, sums_from(q), ahead);
                continue;
            }
            for (std::size_t i = 0; i < group; ++i)
                if (states_.sees(q + i, tiles[t]))
                    quantized.add(tiles.first(end), t, weights_.from(i, 0), 1, sums_from(q + i), ahead);
        }
    }

    // The running sums of the queries from `q` on. (queries, width)
    [[nodiscard]] rows_out sums_from(std::size_t q) noexcept { return {states_.running(q).sums(), states_.stride()}; }

    // Whether two tiles are read by the same kernel.
    [[nodiscard]] static bool alike(const attention_tile& a, const attention_tile& b) noexcept {
        return a.codes.keys.format == b.codes.keys.format && a.codes.keys.table == b.codes.keys.table;
    }

    // A tile in which the window of some query begins: query by query.
    KVCACHE_NOINLINE void add_begun(const attention_tile& tile, std::size_t t, std::size_t q, std::size_t count) {
        attention_tile part = tile;
        const std::span<const attention_tile> alone(&part, 1);
        detail::tile_fetch ahead(alone, width_); // prefetches nothing
        for (std::size_t i = 0; i < count; ++i) {
            part.first = detail::first_seen(tile, states_.seen_by(q + i).from);
            part.last = detail::seen(tile, states_.seen_by(q + i).limit);
            if (part.last > part.first)
                detail::add_values<1, false>(alone, width_, weights_.from(i, t), sums_from(q + i), ahead);
        }
    }

    // A tile that some queries see only in part: first the lanes that all queries see, then the others query by query.
    template <std::size_t N>
    void add_ragged(const attention_tile& tile, std::size_t t, std::size_t q, std::size_t least) {
        attention_tile part = tile;
        const std::span<const attention_tile> alone(&part, 1);
        detail::tile_fetch ahead(alone, width_); // prefetches nothing
        part.last = detail::seen(tile, least);
        detail::add_values<N, false>(alone, width_, weights_.from(0, t), sums_from(q), ahead);
        part.first = part.last;
        weights_.rescaled[t] = false;
        for (std::size_t i = 0; i < N; ++i) {
            part.last = detail::seen(tile, states_.seen_by(q + i).limit);
            if (part.last > part.first)
                detail::add_values<1, false>(alone, width_, weights_.from(i, t), sums_from(q + i), ahead);
        }
    }

    // Turns the scores of `count` queries into weights, in place. All queries see the tiles `whole` wholly. `Ahead`:
    // prefetches a little with each query.
    template <bool Ahead>
    KVCACHE_NOINLINE KVCACHE_FLATTEN void softmax_tile(std::span<const attention_tile> tiles,
                                                       detail::query_states::limits::tile_range whole, std::size_t q,
                                                       std::size_t count, detail::tile_fetch& ahead) {
        const auto meanwhile = [&]() KVCACHE_INLINE {
            if constexpr (Ahead)
                ahead.ask_early();
        };
        ranges::fill(weights_.rescaled, false);
        // With two queries there is too little independent work to hide the latency of the exponentials.
        if (count > 2 && whole.begin == 0 && whole.end == most_tiles && ranges::all_of(tiles, detail::is_full)) {
            detail::softmax_full_tile(
                weights_, count, [&](std::size_t i) KVCACHE_INLINE { return states_.running(q + i); }, meanwhile);
            return;
        }
        for (std::size_t i = 0; i < count; ++i, meanwhile())
            for (std::size_t t = 0; t < tiles.size(); ++t)
                detail::softmax_tile(weights_, i, t, tiles[t], states_.seen_by(q + i), states_.running(q + i));
    }

    std::size_t head_dim_;
    std::size_t width_;
    detail::packed_queries packed_;
    detail::query_states states_;
    std::array<attention_tile, most_tiles> fetching_;
    detail::tile_weights weights_;
    detail::quantized_tiles<detail::queries_of_codes> quantized_;
    bool wants_whole_ = false;
    float soft_cap_ = 0.0f;
};

template <std::size_t N>
void query_block::dispatch(std::span<const attention_tile> tiles, std::size_t begin, std::size_t count, bool ahead) {
    if (count == N)
        take<N>(tiles, begin, ahead);
    else if constexpr (N > 1)
        dispatch<N - 1>(tiles, begin, count, ahead);
}

#if KVCACHE_COMPILED
extern template void query_block::dispatch<detail::max_queries>(std::span<const attention_tile>, std::size_t,
                                                                std::size_t, bool);
#endif

}} // namespace kvcache
