// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/aligned.hpp>
#include <kvcache/core/contract.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/kernel/math.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <span>

namespace kvcache {

/// A tile of up to 16 keys and values, and the lanes of it that exist.
struct attention_tile {
    const float* keys = nullptr;   ///< (head_dim, 16)
    const float* values = nullptr; ///< (16, value_width)
    std::size_t first = 0;         ///< The first lane in use.
    std::size_t last = 0;          ///< Behind the last lane in use.
    std::size_t position = 0;      ///< Of the first lane in use.
};

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

    /// Takes in one tile; tiles come in ascending position.
    void attend(const attention_tile& tile) {
        if (tile.position / split != region_) {
            merge_all();
            region_ = tile.position / split;
        }
        // The lanes that all queries see go together; a block that straddles the diagonal goes one by one.
        const std::size_t end = tile.position + (tile.last - tile.first);
        bool whole = true;
        for (std::size_t q = 0; q < size_; ++q)
            whole = whole && limit_[q] + 1 >= end;
        if (whole) {
            dispatch(tile);
            return;
        }
        for (std::size_t q = 0; q < size_; ++q)
            if (limit_[q] >= tile.position) {
                attention_tile seen = tile;
                seen.last = std::min(tile.last, tile.first + limit_[q] + 1 - tile.position);
                take<1>(seen, q);
            }
    }

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

    void dispatch(const attention_tile& tile) {
        std::size_t q = 0;
        for (; q + 4 <= size_; q += 4)
            take<4>(tile, q);
        switch (size_ - q) {
        case 3:
            take<3>(tile, q);
            break;
        case 2:
            take<2>(tile, q);
            break;
        case 1:
            take<1>(tile, q);
            break;
        default:
            break;
        }
    }

    template <std::size_t N>
    void take(const attention_tile& tile, std::size_t q) {
        f32x16 scores[N];
        for (auto& s : scores)
            s = f32x16::zero();
        const float* queries = queries_.data() + q * head_dim_;
        for (std::size_t d = 0; d < head_dim_; ++d) {
            const f32x16 keys = f32x16::load(tile.keys + d * tile_tokens);
            for (std::size_t i = 0; i < N; ++i)
                scores[i] = fma(f32x16::broadcast(queries[i * head_dim_ + d]), keys, scores[i]);
        }
        alignas(64) float weights[N][tile_tokens];
        for (std::size_t i = 0; i < N; ++i)
            weigh(q + i, tile, scores[i]).store(weights[i]);

        for (std::size_t column = 0; column < width_; column += 16) {
            f32x16 sums[N];
            for (std::size_t i = 0; i < N; ++i)
                sums[i] = f32x16::load(running_sums(q + i) + column);
            for (std::size_t lane = tile.first; lane < tile.last; ++lane) {
                const f32x16 values = f32x16::load(tile.values + lane * width_ + column);
                for (std::size_t i = 0; i < N; ++i)
                    sums[i] = fma(f32x16::broadcast(weights[i][lane]), values, sums[i]);
            }
            for (std::size_t i = 0; i < N; ++i)
                sums[i].store(running_sums(q + i) + column);
        }
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
