// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/shape.hpp>
#include <kvcache/kernel/simd.hpp>

#include <algorithm>
#include <cstddef>

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

    /// The position behind its last lane.
    [[nodiscard]] std::size_t end() const noexcept { return position + (last - first); }
};

namespace detail {

/// Asks for a cache line before it is read.
inline void fetch([[maybe_unused]] const float* line) noexcept {
#if defined(__GNUC__)
    __builtin_prefetch(line, 0, 2);
#endif
}

// Chains of multiply-adds that run side by side hide the latency of each: so many queries, tiles and columns of values
// at once as fill the registers. None of it changes a chain.
inline constexpr bool wide_vectors = native_lanes == 16;

/// Queries that go through a kernel together, at most.
inline constexpr std::size_t most_together = wide_vectors ? 8 : 6;

/// Tiles whose weights are known before their values are read, at most.
inline constexpr std::size_t most_tiles = 4;

[[nodiscard]] constexpr std::size_t tiles_together(std::size_t queries) noexcept {
    if (wide_vectors)
        return queries <= 4 ? 4 : 2;
    return queries == 1 ? 4 : queries <= 3 ? 2 : 1;
}
[[nodiscard]] constexpr std::size_t columns_together(std::size_t queries) noexcept {
    if (wide_vectors)
        return queries <= 4 ? 4 : 2;
    return queries == 1 ? 4 : queries <= 3 ? 2 : 1;
}

/// Scores of N queries with Tiles tiles, each one chain over ascending head_dim.
/// queries: (head_dim, N), scores: (N, most_tiles, 16); `Ahead`: the keys that come soon are fetched meanwhile.
template <std::size_t N, std::size_t Tiles, bool Ahead>
inline void score(const float* queries, std::size_t head_dim, const attention_tile* tiles, float* scores) {
    f32x16 sums[N * Tiles]; // flat: GCC 12 keeps no nested array in registers
    for (auto& s : sums)
        s = f32x16::zero();
    const float *keys[Tiles], *ahead[Tiles];
    for (std::size_t t = 0; t < Tiles; ++t) {
        keys[t] = tiles[t].keys;
        ahead[t] = tiles[t].ahead_keys;
    }
    for (std::size_t d = 0; d < head_dim; ++d) {
        f32x16 key[Tiles];
        for (std::size_t t = 0; t < Tiles; ++t) {
            key[t] = f32x16::load(keys[t] + d * tile_tokens);
            if constexpr (Ahead)
                fetch(ahead[t] + d * tile_tokens);
        }
        for (std::size_t i = 0; i < N * Tiles; ++i)
            sums[i] = fma(f32x16::broadcast(queries[d * N + i / Tiles]), key[i % Tiles], sums[i]);
    }
    for (std::size_t i = 0; i < N * Tiles; ++i)
        sums[i].store(scores + (i / Tiles * most_tiles + i % Tiles) * tile_tokens);
}

/// What values are weighted with.
struct tile_weights {
    alignas(64) float lanes[most_together][most_tiles][tile_tokens];
    float rescale[most_tiles][most_together]; ///< What sums are multiplied by before a tile.
    bool rescaled[most_tiles];                ///< Whether any of those is not one.
};

/// Adds the weighted values of a tile's lane to N queries, 16 * Columns numbers.
template <std::size_t N, std::size_t Columns>
inline void add_lane(const float* values, const float* weights, f32x16 (&sums)[N * Columns]) {
    f32x16 value[Columns];
    for (std::size_t c = 0; c < Columns; ++c)
        value[c] = f32x16::load(values + 16 * c);
    for (std::size_t i = 0; i < N * Columns; ++i) {
        const f32x16 weight = f32x16::broadcast(weights[i / Columns * most_tiles * tile_tokens]);
        sums[i] = fma(weight, value[i % Columns], sums[i]);
    }
}

/// Adds the weighted values of tiles [begin, end) to the sums of N queries, in 16 * Columns numbers from `column` on:
/// one chain over ascending lanes. sums: the first query's, `stride` numbers from one to the next; `first`: the first
/// query among the weights.
template <std::size_t N, std::size_t Columns, bool Ahead>
inline void add_columns(const attention_tile* tiles, std::size_t begin, std::size_t end, std::size_t width,
                        std::size_t column, const tile_weights& weights, std::size_t first, float* to,
                        std::size_t stride) {
    f32x16 sums[N * Columns];
    for (std::size_t i = 0; i < N * Columns; ++i)
        sums[i] = f32x16::load(to + i / Columns * stride + column + i % Columns * 16);
    for (std::size_t t = begin; t < end; ++t) {
        if (weights.rescaled[t])
            for (std::size_t i = 0; i < N * Columns; ++i)
                sums[i] = sums[i] * f32x16::broadcast(weights.rescale[t][first + i / Columns]);
        const float* values = tiles[t].values + column;
        const float* of_tile = weights.lanes[first][t];
        std::size_t lane = tiles[t].first, last = tiles[t].last;
        if constexpr (Ahead) {
            const float* ahead = tiles[t].ahead_values + column;
            for (; lane < last; ++lane) {
                for (std::size_t c = 0; c < Columns; ++c)
                    fetch(ahead + lane * width + 16 * c);
                add_lane<N, Columns>(values + lane * width, of_tile + lane, sums);
            }
        } else {
            // Tiles that lie behind each other, as their weights do, are one long loop.
            for (; t + 1 < end && !weights.rescaled[t + 1] && tiles[t].last == tile_tokens && tiles[t + 1].first == 0 &&
                   tiles[t + 1].values == tiles[t].values + tile_tokens * width;
                 ++t)
                last += tiles[t + 1].last;
            for (; lane < last; ++lane)
                add_lane<N, Columns>(values + lane * width, of_tile + lane, sums);
        }
    }
    for (std::size_t i = 0; i < N * Columns; ++i)
        sums[i].store(to + i / Columns * stride + column + i % Columns * 16);
}

/// The same for all columns.
template <std::size_t N, bool Ahead>
inline void add_values(const attention_tile* tiles, std::size_t begin, std::size_t end, std::size_t width,
                       const tile_weights& weights, std::size_t first, float* to, std::size_t stride) {
    constexpr std::size_t many = columns_together(N);
    std::size_t column = 0;
    for (; column + 16 * many <= width; column += 16 * many)
        add_columns<N, many, Ahead>(tiles, begin, end, width, column, weights, first, to, stride);
    if constexpr (many > 1)
        for (; column < width; column += 16)
            add_columns<N, 1, Ahead>(tiles, begin, end, width, column, weights, first, to, stride);
}

} // namespace detail

} // namespace kvcache
