// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/quantized_tiles.hpp>
#include <kvcache/attention/query_states.hpp>
#include <kvcache/attention/softmax_state.hpp>
#include <kvcache/attention/tile_kernels.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/quantized_operand.hpp>
#include <kvcache/core/compiled.hpp>
#include <kvcache/core/zeroed_memory.hpp>
#include <kvcache/kernel/largest.hpp>
#include <kvcache/kernel/math.hpp>
#include <kvcache/kernel/strided_rows.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

// Scores of queries become weights, in place, and enter each query's running softmax. Earlier sums are rescaled where a
// larger score appears.

/// End of the lanes of a tile that a query with this limit sees.
[[nodiscard]] inline std::size_t seen(const attention_tile& tile, std::size_t limit) noexcept {
    return limit < tile.position ? tile.first : std::min(tile.last, tile.first + limit + 1 - tile.position);
}

/// Returns whether all lanes of a tile are in use.
[[nodiscard]] inline bool is_full(const attention_tile& tile) noexcept {
    return tile.first == 0 && tile.last == tile_tokens && tile.mask == nullptr;
}

/// Softmax of most_tiles full tiles that `count` queries see to their ends. Branch-free, since whether a score exceeds
/// all earlier ones is unpredictable: first the differences of all queries, then the exponentials. `state(i)`: running
/// softmax of query i. `meanwhile` is called once a query, amid the exponentials.
template <class State, class Meanwhile>
KVCACHE_INLINE inline void softmax_full_tile(tile_weights& weights, std::size_t count, const State& state,
                                             const Meanwhile& meanwhile) noexcept {
    static_assert(most_tiles == 4);
    float tops[max_queries][most_tiles];                          // the largest score up to each tile
    alignas(64) float falls[tile_weights::rows][most_tiles] = {}; // from one to the next
    for (std::size_t i = 0; i < count; ++i) {
        f32x16 scores[most_tiles];
        KVCACHE_UNROLL for (std::size_t t = 0; t < most_tiles; ++t) scores[t] = f32x16::load(weights.lanes[i][t]);
        float& top = state(i).largest();
        top = rising(scores, top, tops[i], falls[i]); // the differences are NaN as long as all scores are -inf
    }
    for (std::size_t i = 0; i < count; ++i) {
        meanwhile();
        f32x16 each[most_tiles];
        KVCACHE_UNROLL for (std::size_t t = 0; t < most_tiles; ++t) each[t] =
            f32x16::load(weights.lanes[i][t]) - f32x16::broadcast(tops[i][t]);
        exp_of_differences(each);
        KVCACHE_UNROLL for (std::size_t t = 0; t < most_tiles; ++t) each[t].store(weights.lanes[i][t]);
    }
    f32x16 least = f32x16::broadcast(1.0f);
    for (std::size_t i = 0; i < count; i += 16 / most_tiles) {
        f32x16 each[] = {f32x16::load(falls[i])};
        exp_of_differences(each);
        each[0].store(weights.rescale[i]);
        least = min(each[0], least);
    }
    float kept[16];
    least.store(kept);
    for (std::size_t t = 0; t < most_tiles; ++t) {
        float all = kept[t];
        for (std::size_t more = t + most_tiles; more < 16; more += most_tiles)
            all = kept[more] < all ? kept[more] : all;
        weights.rescaled[t] = all < 1.0f;
    }
    for (std::size_t i = 0; i < count; ++i) {
        f32x16 weight = state(i).weight();
        KVCACHE_UNROLL for (std::size_t t = 0; t < most_tiles; ++t) weight =
            fma(weight, f32x16::broadcast(weights.rescale[i][t]), f32x16::load(weights.lanes[i][t]));
        state(i).set_weight(weight);
    }
}

/// Softmax of tile t, some of whose lanes may be unused or unseen.
inline void softmax_tile(tile_weights& weights, std::size_t query, std::size_t t, const attention_tile& tile,
                         std::size_t limit, const softmax_state& state) noexcept {
    constexpr float none = -std::numeric_limits<float>::infinity();
    float* const lanes = weights.lanes[query][t];
    float& rescale = weights.rescale[query][t];
    rescale = 1.0f;
    const std::size_t last = seen(tile, limit);
    if (last == tile.first)
        return;
    f32x16 each[] = {f32x16::load(lanes)};
    if (tile.mask != nullptr)
        each[0] = each[0] + f32x16::load(tile.mask);
    if (tile.first != 0 || last != tile_tokens)
        each[0] = within(each[0], tile.first, last, none);
    const float before = state.largest();
    if (any_above(each[0], before))
        if (const float most = largest(each[0]); most > before) {
            rescale = exp_one(before - most);
            weights.rescaled[t] = true;
            state.largest() = most;
        }
    each[0] = each[0] - f32x16::broadcast(state.largest());
    exp_of_differences(each);
    state.set_weight(fma(state.weight(), f32x16::broadcast(rescale), each[0]));
    each[0].store(lanes);
}

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

}}} // namespace kvcache::detail

namespace kvcache { inline namespace KVCACHE_ABI {

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

    /// Adds a query that sees the positions up to `position`. Its partials are written to `partials`, one for each
    /// split, or merged here if that is null. (splits, softmax_state::numbers(width))
    void add(std::size_t position, float* partials = nullptr) { states_.add(position, partials); }

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
            const bool ahead = std::ranges::all_of(tiles.first(count), [](const auto& t) { return t.ahead_keys; });
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

    /// Finishes a query that merges here: writes its output. (head_dim)
    void finish(std::size_t q, float* out) { states_.finish(q, head_dim_, out); }

    /// Ends the current partial softmax of a query.
    void leave(std::size_t q) { states_.leave(q); }

private:
    // The tiles, with the prefetch targets of one group: its share of the next tiles, else the current ones.
    [[nodiscard]] std::span<const attention_tile> fetched_by(std::size_t group, std::size_t groups,
                                                             std::span<const attention_tile> tiles) {
        if (groups == 1)
            return tiles; // a copy would stall on the stores that just wrote the tiles
        std::ranges::copy(tiles, fetching_.begin());
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
    [[gnu::noinline]] void take(std::span<const attention_tile> tiles, std::size_t begin, bool ahead) {
        constexpr bool fetches = N > 1 || detail::wide_vectors; // otherwise the hardware prefetcher suffices
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

        if (ahead) {
            softmax_tile<fetches>(seen, whole, q, N, fetch);
            detail::add_values<N, fetches>(tiles.first(whole), width_, weights_.from(0, 0), sums_from(q), fetch);
        } else {
            softmax_tile<false>(seen, whole, q, N, fetch);
            detail::add_values<N, false>(tiles.first(whole), width_, weights_.from(0, 0), sums_from(q), fetch);
        }
        for (t = whole; t < count; ++t)
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
                if (detail::seen(tiles[t], states_.limit(q + i)) > tiles[t].first)
                    quantized.add(tiles.first(end), t, weights_.from(i, 0), 1, sums_from(q + i), ahead);
        }
    }

    // The running sums of the queries from `q` on. (queries, width)
    [[nodiscard]] rows_out sums_from(std::size_t q) noexcept { return {states_.running(q).sums(), states_.stride()}; }

    // Whether two tiles are read by the same kernel.
    [[nodiscard]] static bool alike(const attention_tile& a, const attention_tile& b) noexcept {
        return a.codes.keys.format == b.codes.keys.format && a.codes.keys.table == b.codes.keys.table;
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
            part.last = detail::seen(tile, states_.limit(q + i));
            if (part.last > part.first)
                detail::add_values<1, false>(alone, width_, weights_.from(i, t), sums_from(q + i), ahead);
        }
    }

    // Turns the scores of `count` queries into weights, in place. All queries see the first `whole` tiles to their
    // ends. `Ahead`: prefetches a little with each query.
    template <bool Ahead>
    [[gnu::noinline, gnu::flatten]] void softmax_tile(std::span<const attention_tile> tiles, std::size_t whole,
                                                      std::size_t q, std::size_t count, detail::tile_fetch& ahead) {
        const auto meanwhile = [&]() KVCACHE_INLINE {
            if constexpr (Ahead)
                ahead.ask_early();
        };
        std::ranges::fill(weights_.rescaled, false);
        // With two queries there is too little independent work to hide the latency of the exponentials.
        if (count > 2 && whole == most_tiles && std::ranges::all_of(tiles, detail::is_full)) {
            detail::softmax_full_tile(
                weights_, count, [&](std::size_t i) KVCACHE_INLINE { return states_.running(q + i); }, meanwhile);
            return;
        }
        for (std::size_t i = 0; i < count; ++i, meanwhile())
            for (std::size_t t = 0; t < tiles.size(); ++t)
                detail::softmax_tile(weights_, i, t, tiles[t], states_.limit(q + i), states_.running(q + i));
    }

    std::size_t head_dim_;
    std::size_t width_;
    detail::packed_queries packed_;
    detail::query_states states_;
    std::array<attention_tile, most_tiles> fetching_;
    detail::tile_weights weights_;
    detail::quantized_tiles<detail::queries_of_codes> quantized_;
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
extern template void query_block::dispatch<detail::max_queries>(std::span<const attention_tile>, std::size_t,
                                                                std::size_t, bool);
#endif

}} // namespace kvcache
