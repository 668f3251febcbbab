// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/aligned.hpp>
#include <kvcache/core/contract.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/kernel/math.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace kvcache {

/// A tile of up to 16 keys and values, and the lanes of it that exist.
struct attention_tile {
    const float* keys = nullptr;       ///< (head_dim, 16)
    const float* values = nullptr;     ///< (16, value_width)
    std::size_t first = 0;             ///< The first lane in use.
    std::size_t last = 0;              ///< Behind the last lane in use.
    std::size_t position = 0;          ///< Of the first lane in use.
    const float* ahead_keys = nullptr; ///< Of a tile that comes soon: fetched meanwhile; null for none.
    const float* ahead_values = nullptr;
};

namespace detail {

/// Asks for the cache line of `from[index]` before it is read. By integers, as `from` may be null.
inline void fetch([[maybe_unused]] const float* from, [[maybe_unused]] std::size_t index) noexcept {
#if defined(__GNUC__)
    __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(from) + index * sizeof(float)), 0,
                       1);
#endif
}

} // namespace detail

/// Up to eight queries that walk the same tiles with one running softmax each. What a query computes is a chain of its
/// own, so the bits do not depend on which queries share a block.
///
/// Scores: one chain of fused multiply-adds over head_dim. Softmax: rescaled a tile at a time, sums kept in 16 lanes
/// and folded once. At every multiple of `split` positions a new partial softmax begins; partials merge in ascending
/// order (so that splits may run on several threads and still give these bits).
class query_block {
public:
    static constexpr std::size_t capacity = 8;
    static constexpr std::size_t split = 1024; ///< Positions; part of the numeric contract.

    explicit query_block(std::size_t head_dim)
        : head_dim_(head_dim),
          width_((head_dim + 15) / 16 * 16),
          queries_(capacity * head_dim),
          sums_(2 * capacity * width_) {}

    void clear() noexcept {
        size_ = 0;
        region_ = 0;
    }

    /// Adds a query that sees the positions up to `position`.
    void add(std::size_t position) {
        expects(size_ < capacity, "a block holds eight queries");
        running_[size_] = {};
        merged_[size_] = {};
        limit_[size_++] = position;
    }

    /// The numbers of a query, rotated and scaled. (head_dim)
    [[nodiscard]] std::span<float> query(std::size_t q) { return {queries_.data() + q * head_dim_, head_dim_}; }

    /// Takes in tiles, in ascending position. How many come at once changes no bit.
    void attend(std::span<const attention_tile> tiles) {
        while (!tiles.empty()) {
            const attention_tile& next = tiles.front();
            if (next.position / split != region_) {
                merge_all();
                region_ = next.position / split;
            }
            // The tiles that all queries see go together; one that straddles the diagonal goes query by query.
            std::size_t whole = 0;
            while (whole < tiles.size() && tiles[whole].position / split == region_ && seen_by_all(tiles[whole]))
                ++whole;
            if (whole > 0) {
                dispatch(tiles.first(whole));
                tiles = tiles.subspan(whole);
                continue;
            }
            for (std::size_t q = 0; q < size_; ++q)
                if (limit_[q] >= next.position) {
                    attention_tile seen = next;
                    seen.last = std::min(next.last, next.first + limit_[q] + 1 - next.position);
                    take<1>({&seen, 1}, q);
                }
            tiles = tiles.subspan(1);
        }
    }
    void attend(const attention_tile& tile) { attend({&tile, 1}); }

    /// Writes the output of a query. (head_dim)
    void finish(std::size_t q, float* out) {
        merge(q);
        const f32x16 total = f32x16::broadcast(sum(merged_[q].weight));
        const float* sums = merged_sums(q);
        detail::by_sixteen(head_dim_, [&](std::size_t d, std::size_t n) {
            detail::store_some(f32x16::load(sums + d) / total, out + d, n);
        });
    }

private:
    static constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

    // A partial softmax: the largest score, the weights in 16 lanes; its weighted values are in sums_.
    struct partial {
        float largest = minus_infinity;
        f32x16 weight = f32x16::zero();
    };

    [[nodiscard]] float* running_sums(std::size_t q) { return sums_.data() + q * width_; }
    [[nodiscard]] float* merged_sums(std::size_t q) { return sums_.data() + (capacity + q) * width_; }

    [[nodiscard]] bool seen_by_all(const attention_tile& tile) const {
        const std::size_t end = tile.position + (tile.last - tile.first);
        return std::all_of(limit_.begin(), limit_.begin() + static_cast<std::ptrdiff_t>(size_),
                           [&](std::size_t limit) { return limit + 1 >= end; });
    }

    // Chains that run side by side hide the latency of each: this many queries, tiles and columns of values at once.
    static constexpr bool wide = detail::native_lanes == 16;
    static constexpr std::size_t most_queries = wide ? 8 : 4;
    [[nodiscard]] static constexpr std::size_t tiles_at_once(std::size_t queries) {
        return queries <= 2 ? (wide ? 4 : 2) : queries <= 4 && wide ? 2 : 1;
    }
    [[nodiscard]] static constexpr std::size_t columns_at_once(std::size_t queries) {
        return std::clamp<std::size_t>((wide ? 16 : 4) / queries, 1, 4);
    }

    template <std::size_t N = most_queries>
    void dispatch(std::span<const attention_tile> tiles, std::size_t q = 0) {
        for (; q + N <= size_; q += N)
            take<N>(tiles, q);
        if constexpr (N > 1)
            if (q < size_)
                dispatch<N - 1>(tiles, q);
    }

    // N queries from q on, over tiles that they see whole.
    template <std::size_t N>
    void take(std::span<const attention_tile> tiles, std::size_t q) {
        constexpr std::size_t at_once = tiles_at_once(N);
        for (; tiles.size() >= at_once; tiles = tiles.subspan(at_once))
            take_some<N, at_once>(tiles.data(), q);
        if constexpr (at_once > 1)
            for (const attention_tile& tile : tiles)
                take_some<N, 1>(&tile, q);
    }

    template <std::size_t N, std::size_t Tiles>
    void take_some(const attention_tile* tiles, std::size_t q) {
        f32x16 scores[N * Tiles]; // flat, as all below: GCC 12 keeps no nested array in registers
        for (auto& s : scores)
            s = f32x16::zero();
        const float* queries = queries_.data() + q * head_dim_;
        for (std::size_t d = 0; d < head_dim_; ++d) {
            f32x16 keys[Tiles];
            for (std::size_t t = 0; t < Tiles; ++t) {
                keys[t] = f32x16::load(tiles[t].keys + d * tile_tokens);
                detail::fetch(tiles[t].ahead_keys, d * tile_tokens);
            }
            for (std::size_t i = 0; i < N * Tiles; ++i)
                scores[i] = fma(f32x16::broadcast(queries[i / Tiles * head_dim_ + d]), keys[i % Tiles], scores[i]);
        }
        for (std::size_t t = 0; t < Tiles; ++t) {
            alignas(64) float weights[N][tile_tokens];
            for (std::size_t i = 0; i < N; ++i)
                weigh(q + i, tiles[t], scores[i * Tiles + t]).store(weights[i]);
            constexpr std::size_t many = columns_at_once(N);
            std::size_t column = 0;
            for (; column + 16 * many <= width_; column += 16 * many)
                add_values<N, many>(tiles[t], q, column, weights);
            if constexpr (many > 1)
                for (; column < width_; column += 16)
                    add_values<N, 1>(tiles[t], q, column, weights);
        }
    }

    // Weighted values of a tile, 16 * Columns numbers of each query: one chain over ascending lanes.
    template <std::size_t N, std::size_t Columns>
    void add_values(const attention_tile& tile, std::size_t q, std::size_t column, const float (&weights)[N][16]) {
        f32x16 sums[N * Columns];
        for (std::size_t i = 0; i < N * Columns; ++i)
            sums[i] = f32x16::load(running_sums(q + i / Columns) + column + i % Columns * 16);
        for (std::size_t lane = tile.first; lane < tile.last; ++lane) {
            const std::size_t at = lane * width_ + column;
            f32x16 values[Columns];
            for (std::size_t c = 0; c < Columns; ++c) {
                values[c] = f32x16::load(tile.values + at + 16 * c);
                detail::fetch(tile.ahead_values, at + 16 * c);
            }
            for (std::size_t i = 0; i < N * Columns; ++i)
                sums[i] = fma(f32x16::broadcast(weights[i / Columns][lane]), values[i % Columns], sums[i]);
        }
        for (std::size_t i = 0; i < N * Columns; ++i)
            sums[i].store(running_sums(q + i / Columns) + column + i % Columns * 16);
    }

    // The weights of a tile's lanes; what came before is rescaled when a larger score appears.
    [[nodiscard]] f32x16 weigh(std::size_t q, const attention_tile& tile, f32x16 scores) {
        if (tile.first != 0 || tile.last != tile_tokens)
            scores = within(scores, tile.first, tile.last, minus_infinity);
        partial& own = running_[q];
        if (own.largest == minus_infinity)
            std::fill_n(running_sums(q), width_, 0.0f);
        f32x16 rescale = f32x16::broadcast(1.0f);
        if (const float top = largest(scores); top > own.largest) {
            rescale = f32x16::broadcast(exp_one(own.largest - top));
            own.largest = top;
            scale_sums(running_sums(q), rescale);
        }
        const f32x16 weights = exp(scores - f32x16::broadcast(own.largest));
        own.weight = fma(own.weight, rescale, weights);
        return weights;
    }

    void scale_sums(float* sums, const f32x16& by) const {
        for (std::size_t column = 0; column < width_; column += 16)
            (f32x16::load(sums + column) * by).store(sums + column);
    }

    void merge_all() {
        for (std::size_t q = 0; q < size_; ++q)
            merge(q);
    }

    // Adds the running partial to the merged one and begins a new one.
    void merge(std::size_t q) {
        partial &from = running_[q], &to = merged_[q];
        if (from.largest == minus_infinity)
            return;
        if (to.largest == minus_infinity) {
            to = from;
            std::copy_n(running_sums(q), width_, merged_sums(q));
        } else {
            const float top = std::max(from.largest, to.largest);
            const f32x16 keep = f32x16::broadcast(exp_one(to.largest - top));
            const f32x16 add = f32x16::broadcast(exp_one(from.largest - top));
            to.largest = top;
            to.weight = fma(to.weight, keep, from.weight * add);
            for (std::size_t column = 0; column < width_; column += 16) {
                const f32x16 added = f32x16::load(running_sums(q) + column) * add;
                fma(f32x16::load(merged_sums(q) + column), keep, added).store(merged_sums(q) + column);
            }
        }
        from = {};
    }

    std::size_t head_dim_;
    std::size_t width_;
    std::size_t size_ = 0;
    std::size_t region_ = 0;
    aligned_vector<float> queries_; // (capacity, head_dim)
    aligned_vector<float> sums_;    // running, then merged: (2, capacity, width)
    std::array<partial, capacity> running_;
    std::array<partial, capacity> merged_;
    std::array<std::size_t, capacity> limit_;
};

} // namespace kvcache
