// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/side_coder.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/kernel/simd.hpp>
#include <kvcache/kernel/strided_rows.hpp>

#include <algorithm>
#include <cstddef>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Tile of up to 16 keys and values, with the range of lanes in use.
struct attention_tile {
    const float* keys = nullptr;       ///< (head_dim, 16)
    const float* values = nullptr;     ///< (16, padded_head_dim)
    std::size_t first = 0;             ///< The first lane in use.
    std::size_t last = 0;              ///< End of the lanes in use.
    std::size_t position = 0;          ///< Position of the first lane in use.
    const float* mask = nullptr;       ///< Added to the scores: -inf for an unused lane; null for none. (16)
    const float* ahead_keys = nullptr; ///< Keys of a tile that comes soon, to prefetch; null for none.
    const float* ahead_values = nullptr;
    const std::byte* ahead_key_codes = nullptr; ///< The same for a tile in quantized form.
    const std::byte* ahead_value_codes = nullptr;
    codec::quantized_tile codes = {}; ///< Quantized operands; keys and values are unused where it has a format.

    /// Position past its last lane.
    [[nodiscard]] std::size_t end() const noexcept { return position + (last - first); }
};

namespace detail {

/// Prefetcher of the tiles that come soon, while other tiles are computed. It alternates cache lines of keys and of
/// values, each in ascending order: memory serves two long streams fastest. Every loop of the kernels prefetches the
/// lines it has time for. With wide vectors the prefetches target the L2 cache: they consume a line so fast that the L1
/// cache would evict lines still in use.
class tile_fetch {
public:
    /// Cache lines of a tile's keys and values that one loop prefetches.
    struct lines {
        const float* keys;
        const float* values;
        std::size_t next; ///< Offset in floats from the start of either.

        void fetch() noexcept {
            ask(keys, next);
            ask(values, next);
            next += tile_tokens;
        }

    private:
        static void ask(const float* from, std::size_t at) noexcept {
            native_lanes == 16 ? prefetch_soon(from, at) : prefetch(from, at);
        }
    };

    tile_fetch(std::span<const attention_tile> tiles, std::size_t lines_a_tile) noexcept
        : tiles_(tiles), of_tile_(lines_a_tile) {}

    /// Takes the next `count` lines of each. All belong to one tile if `count` divides the lines of a tile.
    [[nodiscard]] lines take(std::size_t count) noexcept {
        const lines from{tiles_.front().ahead_keys, tiles_.front().ahead_values, taken_ * tile_tokens};
        taken_ += count;
        if (taken_ >= of_tile_ && tiles_.size() > 1) {
            taken_ -= of_tile_;
            tiles_ = tiles_.subspan(1);
        }
        return from;
    }

    /// Prefetches a few lines before they are taken; each call continues after the last. This keeps memory busy while
    /// scores become weights and nothing is read.
    KVCACHE_INLINE void ask_early() noexcept {
        constexpr std::size_t some = 3;
        lines soon{tiles_.front().ahead_keys, tiles_.front().ahead_values, (taken_ + early_) * tile_tokens};
        for (std::size_t n = 0; n < some; ++n)
            soon.fetch();
        early_ += some;
    }

    /// Prefetches the first lines of a tile whose address alone is known.
    KVCACHE_INLINE static void prefetch_tile(const float* keys, const float* values) noexcept {
        [[maybe_unused]] lines first{keys, values, 0};
        if constexpr (native_lanes == 16) // not with narrow vectors: measured slower on Zen 3
            for (std::size_t n = 0; n < 4; ++n)
                first.fetch();
    }

private:
    std::span<const attention_tile> tiles_; // tiles that are not prefetched yet, or only in part
    std::size_t of_tile_, taken_ = 0, early_ = 0;
};

// Independent chains of multiply-adds hide each other's latency: queries, tiles and columns of values are processed in
// blocks that fill the registers. Blocking never changes a chain.
inline constexpr bool wide_vectors = native_lanes == 16;

/// Maximum number of queries that go through a kernel together.
inline constexpr std::size_t max_queries = wide_vectors ? 12 : 6;

/// Maximum number of tiles whose weights are computed before their values are read.
inline constexpr std::size_t most_tiles = 4;

[[nodiscard]] constexpr std::size_t tiles_together(std::size_t queries) noexcept {
    if (wide_vectors)
        return queries <= 6 ? 4 : 2;
    return queries == 1 ? 4 : queries <= 3 ? 2 : 1;
}
[[nodiscard]] constexpr std::size_t columns_together(std::size_t queries) noexcept {
    if (wide_vectors)
        return queries <= 6 ? 4 : 2;
    return queries == 1 ? 4 : queries <= 3 ? 2 : 1;
}

/// Outer product: sums(i, j) += scalar(i) * vector(j), each its own chain. The smaller operand stays in registers; the
/// larger one is streamed once.
template <std::size_t Rows, std::size_t Vectors, class Scalar, class Vector>
KVCACHE_INLINE inline void add_outer(native_floats (&sums)[Rows * Vectors], const Scalar& scalar,
                                     const Vector& vector) {
    if constexpr (Vectors <= Rows) {
        native_floats kept[Vectors];
        KVCACHE_UNROLL for (std::size_t j = 0; j < Vectors; ++j) {
            kept[j] = vector(j);
            keep(kept[j]);
        }
        KVCACHE_UNROLL for (std::size_t i = 0; i < Rows; ++i) {
            const native_floats s(scalar(i));
            KVCACHE_UNROLL for (std::size_t j = 0; j < Vectors; ++j) sums[i * Vectors + j] =
                fused(s, kept[j], sums[i * Vectors + j]);
        }
    } else {
        native_floats kept[Rows];
        KVCACHE_UNROLL for (std::size_t i = 0; i < Rows; ++i) {
            kept[i] = native_floats(scalar(i));
            keep(kept[i]);
        }
        KVCACHE_UNROLL for (std::size_t j = 0; j < Vectors; ++j) {
            native_floats v = vector(j);
            if constexpr (Rows > 1)
                keep(v);
            KVCACHE_UNROLL for (std::size_t i = 0; i < Rows; ++i) sums[i * Vectors + j] =
                fused(kept[i], v, sums[i * Vectors + j]);
        }
    }
}

/// Scores of N queries with Tiles tiles, each one chain over ascending head_dim. queries: (head_dim, N), scores: (N,
/// most_tiles, 16). `Ahead`: prefetches the tiles that come soon.
template <std::size_t N, std::size_t Tiles, bool Ahead>
inline void score(const float* queries, std::size_t head_dim, const attention_tile* tiles, float* scores,
                  tile_fetch& ahead) {
    constexpr std::size_t vectors = Tiles * native_parts;
    native_floats sums[N * vectors]; // flat: GCC 12 does not keep nested arrays in registers
    KVCACHE_UNROLL for (std::size_t i = 0; i < N * vectors; ++i) sums[i] = native_floats(0.0f);
    const float* keys[Tiles];
    KVCACHE_UNROLL for (std::size_t t = 0; t < Tiles; ++t) keys[t] = tiles[t].keys;
    const auto step = [&](std::size_t d) KVCACHE_INLINE {
        add_outer<N, vectors>(
            sums, [&](std::size_t i) KVCACHE_INLINE { return queries[d * N + i]; },
            [&](std::size_t j) KVCACHE_INLINE {
                return native_floats::load_unaligned(keys[j / native_parts] + d * tile_tokens +
                                                     j % native_parts * native_lanes);
            });
    };
    std::size_t d = 0;
    if constexpr (Ahead) {
        constexpr std::size_t parts = Tiles > 2 ? Tiles / 2 : 1; // each prefetches at most one tile
        for (std::size_t part = 0; part < parts; ++part) {
            const std::size_t steps = head_dim / parts / 2;
            auto lines = ahead.take(steps * Tiles);
            for (std::size_t i = 0; i < steps; ++i, d += 2) {
                KVCACHE_UNROLL for (std::size_t n = 0; n < Tiles; ++n) lines.fetch();
                step(d);
                step(d + 1);
            }
        }
    }
    for (; d < head_dim; ++d)
        step(d);
    KVCACHE_UNROLL for (std::size_t i = 0; i < N * vectors; ++i) sums[i].store_unaligned(
        scores + (i / vectors * most_tiles) * tile_tokens + i % vectors * native_lanes);
}

/// Softmax weights of the values for consecutive queries and tiles: a view. Lanes that a query does not see have weight
/// zero.
struct query_weights {
    const float* lanes = nullptr;   ///< (queries, most_tiles, 16)
    const float* rescale = nullptr; ///< Factor of the sums before a tile is added. (queries, most_tiles)
    const bool* rescaled = nullptr; ///< Whether any of these factors is not one. (tiles)

    /// The same from query `q` and tile `t` on.
    [[nodiscard]] query_weights from(std::size_t q, std::size_t t) const noexcept {
        return {lanes_of(q, t), rescale + q * most_tiles + t, rescaled + t};
    }
    [[nodiscard]] const float* lanes_of(std::size_t q, std::size_t t) const noexcept {
        return lanes + (q * most_tiles + t) * tile_tokens;
    }
    [[nodiscard]] float rescale_of(std::size_t q, std::size_t t) const noexcept { return rescale[q * most_tiles + t]; }
};

/// Softmax weights of the values.
struct tile_weights {
    static constexpr std::size_t rows = (max_queries + 3) / 4 * 4; ///< Rounded up, so that whole vectors fit.
    alignas(64) float lanes[max_queries][most_tiles][tile_tokens];
    alignas(64) float rescale[rows][most_tiles]; ///< Factor of the sums before a tile is added.
    bool rescaled[most_tiles];                   ///< Whether any of these factors is not one.

    /// The weights from query `q` and tile `t` on.
    [[nodiscard]] query_weights from(std::size_t q, std::size_t t) const noexcept {
        return {lanes[q][t], rescale[q] + t, rescaled + t};
    }
};

/// Adds the weighted values of tiles to the sums of N queries, in 16 * Columns elements from `column` on: one chain
/// over ascending lanes. `to`: the sums. (N, width)
template <std::size_t N, std::size_t Columns, bool Ahead>
inline void add_columns(std::span<const attention_tile> tiles, std::size_t width, std::size_t column,
                        const query_weights& weights, rows_out to, tile_fetch& ahead) {
    constexpr std::size_t vectors = Columns * native_parts;
    native_floats sums[N * vectors];
    float* const own = to.data + column;
    KVCACHE_UNROLL for (std::size_t i = 0; i < N * vectors; ++i) sums[i] =
        native_floats::load_unaligned(own + i / vectors * to.stride + i % vectors * native_lanes);
    const auto step = [&](const float* values, const float* of_lane) KVCACHE_INLINE {
        add_outer<N, vectors>(
            sums, [&](std::size_t i) KVCACHE_INLINE { return of_lane[i * most_tiles * tile_tokens]; },
            [&](std::size_t j) KVCACHE_INLINE { return native_floats::load_unaligned(values + j * native_lanes); });
    };
    for (std::size_t t = 0; t < tiles.size(); ++t) {
        if (weights.rescaled[t])
            KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) {
                const native_floats rescale(weights.rescale_of(i, t));
                KVCACHE_UNROLL for (std::size_t j = 0; j < vectors; ++j) sums[i * vectors + j] =
                    sums[i * vectors + j] * rescale;
            }
        const float* of_lane = weights.lanes_of(0, t) + tiles[t].first;
        const float* values = tiles[t].values + column + tiles[t].first * width;
        std::size_t lanes = tiles[t].last - tiles[t].first;
        if constexpr (Ahead) {
            auto lines = ahead.take(tile_tokens / 2 * Columns);
            for (; lanes >= 2; lanes -= 2, values += 2 * width, of_lane += 2) {
                KVCACHE_UNROLL for (std::size_t n = 0; n < Columns; ++n) lines.fetch();
                step(values, of_lane);
                step(values + width, of_lane + 1);
            }
        } else {
            // Tiles that are contiguous in memory, as their weights are, form one long loop.
            for (; t + 1 < tiles.size() && !weights.rescaled[t + 1] && tiles[t].last == tile_tokens &&
                   tiles[t + 1].first == 0 && tiles[t + 1].values == tiles[t].values + tile_tokens * width;
                 ++t)
                lanes += tiles[t + 1].last;
        }
        for (; lanes > 0; --lanes, values += width, ++of_lane)
            step(values, of_lane);
    }
    KVCACHE_UNROLL for (std::size_t i = 0; i < N * vectors; ++i) sums[i].store_unaligned(own + i / vectors * to.stride +
                                                                                         i % vectors * native_lanes);
}

/// The same for all columns.
template <std::size_t N, bool Ahead>
inline void add_values(std::span<const attention_tile> tiles, std::size_t width, const query_weights& weights,
                       rows_out to, tile_fetch& ahead) {
    constexpr std::size_t many = columns_together(N);
    std::size_t column = 0;
    for (; column + 16 * many <= width; column += 16 * many)
        add_columns<N, many, Ahead>(tiles, width, column, weights, to, ahead);
    if constexpr (many > 1)
        for (; column < width; column += 16)
            add_columns<N, 1, false>(tiles, width, column, weights, to, ahead);
}

} // namespace detail

}} // namespace kvcache
