// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/tile_kernels.hpp>
#include <kvcache/core/abi.hpp>
#include <kvcache/kernel/math.hpp>
#include <kvcache/kernel/simd.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>

namespace kvcache { inline namespace KVCACHE_ABI {

/// View of the partial softmax of one query over some of its positions: the weighted sums of the values, the sum of
/// weights in 16 lanes, and the largest score. (width, 16, 1), padded to whole cache lines.
class softmax_state {
public:
    /// Floats of one state, for values of `width` floats.
    [[nodiscard]] static constexpr std::size_t numbers(std::size_t width) noexcept { return width + 32; }

    softmax_state(float* at, std::size_t width) noexcept : at_(at), width_(width) {}

    [[nodiscard]] float* sums() const noexcept { return at_; }
    [[nodiscard]] f32x16 weight() const noexcept { return f32x16::load(at_ + width_); }
    [[nodiscard]] float& largest() const noexcept { return at_[width_ + 16]; }
    void set_weight(const f32x16& weight) const noexcept { weight.store(at_ + width_); }

    /// Returns whether it covers no position.
    [[nodiscard]] bool empty() const noexcept { return largest() == -std::numeric_limits<float>::infinity(); }

    /// Makes it empty and leaves its sums undefined.
    void forget() const noexcept { largest() = -std::numeric_limits<float>::infinity(); }

    /// Makes it empty with sums of zero.
    void clear() const noexcept {
        std::fill_n(at_, width_ + 16, 0.0f);
        forget();
    }

    /// Merges the state of later positions. Not associative in the last bits: always merge in ascending order.
    void merge(const softmax_state& later) const noexcept {
        if (later.empty())
            return;
        if (empty()) {
            std::copy_n(later.at_, width_ + 17, at_);
            return;
        }
        const float top = std::max(later.largest(), largest());
        const f32x16 keep = f32x16::broadcast(exp_one(largest() - top));
        const f32x16 add = f32x16::broadcast(exp_one(later.largest() - top));
        largest() = top;
        for (std::size_t i = 0; i < width_ + 16; i += 16) { // the sums, then the weights
            const f32x16 added = f32x16::load(later.at_ + i) * add;
            fma(f32x16::load(at_ + i), keep, added).store(at_ + i);
        }
    }

    /// Adds a sink: a logit without a value. After all positions, before `finish`.
    void add_sink(float logit) const noexcept {
        const float top = std::max(logit, largest());
        const f32x16 keep = f32x16::broadcast(exp_one(largest() - top));
        const f32x16 add = within(f32x16::broadcast(exp_one(logit - top)), 0, 1, 0.0f); // to lane 0
        largest() = top;
        for (std::size_t i = 0; i < width_; i += 16)
            (f32x16::load(at_ + i) * keep).store(at_ + i);
        set_weight(fma(weight(), keep, add)); // not a product that a compiler contracts into the sum of `finish`
    }

    /// Writes the output: sums divided by the total weight, a fixed reduction tree over the 16 lanes. (head_dim)
    void finish(std::size_t head_dim, float* out) const noexcept {
        const f32x16 total = f32x16::broadcast(sum(weight()));
        detail::by_sixteen(head_dim, [&](std::size_t d, std::size_t n) {
            (f32x16::load(sums() + d) / total).store_up_to(out + d, n);
        });
    }

private:
    float* at_;
    std::size_t width_;
};

namespace detail {

// Scores of queries become weights, in place, and enter each query's running softmax. Earlier sums are rescaled where a
// larger score appears.

/// End of the lanes of a tile that a query with this limit sees.
[[nodiscard]] inline std::size_t seen(const attention_tile& tile, std::size_t limit) noexcept {
    return limit < tile.position ? tile.first : std::min(tile.last, tile.first + limit + 1 - tile.position);
}

/// First lane of a tile that a query sees whose window begins at position `from`.
[[nodiscard]] inline std::size_t first_seen(const attention_tile& tile, std::size_t from) noexcept {
    return from <= tile.position ? tile.first : std::min(tile.last, tile.first + from - tile.position);
}

/// The positions [from, limit] that a query sees.
struct seen_positions {
    std::size_t from = 0, limit = 0;
};

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
                         seen_positions sees, const softmax_state& state) noexcept {
    constexpr float none = -std::numeric_limits<float>::infinity();
    float* const lanes = weights.lanes[query][t];
    float& rescale = weights.rescale[query][t];
    rescale = 1.0f;
    const std::size_t first = first_seen(tile, sees.from), last = seen(tile, sees.limit);
    if (last <= first)
        return;
    f32x16 each[] = {f32x16::load(lanes)};
    if (tile.mask != nullptr)
        each[0] = each[0] + f32x16::load(tile.mask);
    if (first != 0 || last != tile_tokens)
        each[0] = within(each[0], first, last, none);
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

/// Soft-caps the scores of `count` queries with `tiles` tiles: cap * tanh(score / cap), in place.
inline void soft_cap_scores(tile_weights& weights, std::size_t count, std::size_t tiles, float cap) noexcept {
    for (std::size_t i = 0; i < count; ++i)
        for (std::size_t t = 0; t < tiles; ++t)
            soft_cap(f32x16::load(weights.lanes[i][t]), cap).store(weights.lanes[i][t]);
}

} // namespace detail

}} // namespace kvcache
