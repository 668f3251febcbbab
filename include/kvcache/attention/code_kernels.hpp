// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/coded_queries.hpp>
#include <kvcache/attention/tile_kernels.hpp>
#include <kvcache/codec/packed_codes.hpp>
#include <kvcache/codec/side_codes.hpp>
#include <kvcache/kernel/column_dot.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace kvcache::detail {

/// Strips of a tile as numbers: of keys by number of head_dim, of values by 16 neighbours of a row.
template <class Number>
struct wide_reader {
    const Number* numbers;
    std::size_t columns = 0; ///< Of values.
    [[nodiscard]] KVCACHE_INLINE f32x16 operator()(std::size_t d) const noexcept {
        return f32x16::load(numbers + d * 16);
    }
    [[nodiscard]] KVCACHE_INLINE f32x16 operator()(std::size_t lane, std::size_t column) const noexcept {
        return f32x16::load(numbers + (lane * columns + column) * 16);
    }
};

/// Scores of N queries with Tiles tiles, each one chain over ascending head_dim, as `score` has them.
/// queries: (head_dim, stride), scores: (N, most_tiles, 16)
template <std::size_t N, std::size_t Tiles, class Reader>
inline void score_strips(const float* queries, std::size_t stride, std::size_t head_dim, const Reader (&tiles)[Tiles],
                         float* scores) noexcept {
    constexpr std::size_t vectors = Tiles * native_parts;
    native_floats sums[N * vectors];
    unrolled<N * vectors>([&](auto i) KVCACHE_INLINE { sums[i] = native_floats(0.0f); });
    for (std::size_t d = 0; d < head_dim; ++d, queries += stride)
        unrolled<Tiles>([&](auto t) KVCACHE_INLINE {
            const f32x16 keys = tiles[t](d);
            unrolled<N>([&](auto i) KVCACHE_INLINE {
                const native_floats query(queries[i]);
                unrolled<native_parts>([&](auto p) KVCACHE_INLINE {
                    auto& sum = sums[i * vectors + t * native_parts + p];
                    sum = fused(query, keys.part[p], sum);
                });
            });
        });
    unrolled<N * vectors>([&](auto i) KVCACHE_INLINE {
        sums[i].store_unaligned(scores + (i / vectors * most_tiles) * tile_tokens + i % vectors * native_lanes);
    });
}

/// Scores of N queries from `first` on with a tile of whole-number keys: one chain over ascending groups.
/// scores: (N, most_tiles, 16)
template <unsigned Bits, bool Linear, std::size_t N>
inline void score_dots(const coded_queries<numbers_that_meet<Bits>>& queries, std::size_t first, const side_codes& keys,
                       std::size_t head_dim, float* scores) noexcept {
    const auto codes = packed_codes<Bits>(page_side::keys, head_dim).view(keys.codes, keys.table);
    f32x16 sums[N];
    for (std::size_t i = 0; i < N; ++i)
        sums[i] = f32x16::zero();
    std::size_t g = 0;
    for (std::size_t begin = 0; begin < head_dim; begin += keys.group, ++g) {
        const std::size_t end = std::min(begin + keys.group, head_dim);
        const std::byte* asked[N];
        std::int32_t own[N];
        for (std::size_t i = 0; i < N; ++i) {
            asked[i] = queries.codes(first + i) + begin / 4 * numbers_that_meet<Bits>::quad_bytes;
            own[i] = queries.sum(first + i, begin / 16, (end + 15) / 16) * first_of<Bits>(codes);
        }
        f32x16 dots[N];
        products_of<Bits, Linear, N>(codes, begin / 4, (end + 3) / 4, asked, own, dots);
        const f32x16 scales = f32x16::load(keys.scales + g * tile_tokens);
        for (std::size_t i = 0; i < N; ++i)
            sums[i] = fma(dots[i], scales, sums[i]);
    }
    for (std::size_t i = 0; i < N; ++i)
        (sums[i] * f32x16::broadcast(queries.scale(first + i))).store(scores + i * most_tiles * tile_tokens);
}

/// The same where each of head_dim has a step and a middle: the steps are the queries' by now, and the products with
/// the middles are added. middle: (N)
template <std::size_t N>
inline void score_channels(const coded_queries<byte_numbers>& queries, const side_codes& keys, std::size_t head_dim,
                           const float* middle, float* scores) noexcept {
    const auto codes = packed_codes<4>(page_side::keys, head_dim).view(keys.codes, keys.table);
    const std::byte* asked[N];
    std::int32_t own[N];
    for (std::size_t i = 0; i < N; ++i) {
        asked[i] = queries.codes(i);
        own[i] = queries.sum(i, 0, (head_dim + 15) / 16) * first_of<4>(codes);
    }
    f32x16 dots[N];
    products_of<4, true, N>(codes, 0, (head_dim + 3) / 4, asked, own, dots);
    for (std::size_t i = 0; i < N; ++i)
        fma(dots[i], f32x16::broadcast(queries.scale(i)), f32x16::broadcast(middle[i]))
            .store(scores + i * most_tiles * tile_tokens);
}

/// Fetches the codes of a tile that comes soon, a line of keys and a line of values by turns, a few at a time all
/// along: what is asked for all at once is in part forgotten.
class code_fetch {
public:
    code_fetch() = default;
    /// Steps before a tile's keys are scored, and before the weights of its values are rounded.
    static constexpr std::size_t before_scores = 2, before_weights = 2;

    /// Of tile `of`, in steps: those, and one with each column of values.
    code_fetch(const attention_tile& of, std::size_t columns) noexcept
        : keys_(of.ahead_key_codes), values_(of.ahead_value_codes) {
        if (keys_ == nullptr || values_ == nullptr)
            return;
        const std::size_t keys = of.codes.keys.bytes, values = of.codes.values.bytes;
        const bool scored_by_dots = of.codes.keys.table != nullptr || of.codes.keys.format == code_format::int8;
        both_ = std::min(keys, values);
        most_ = std::max(keys, values);
        longer_ = keys > values ? keys_ : values_;
        const std::size_t steps = columns + (scored_by_dots ? before_scores + before_weights : 0);
        step_ = (most_ / steps + 63) / 64 * 64;
    }

    KVCACHE_INLINE void some(std::size_t steps = 1) noexcept {
        const std::size_t end = next_ + step_ * steps;
        for (; next_ < std::min(end, both_); next_ += 64) {
            prefetch(keys_, next_);
            prefetch(values_, next_);
        }
        for (; next_ < std::min(end, most_); next_ += 64)
            prefetch(longer_, next_);
    }

private:
    const std::byte *keys_ = nullptr, *values_ = nullptr, *longer_ = nullptr;
    std::size_t both_ = 0, most_ = 0, step_ = 0, next_ = 0;
};

/// What values of a tile are weighted with, query by query. Lanes that a query does not see weigh nothing.
template <std::size_t N>
struct code_weights {
    const float* lanes[N];
    float rescale[N]; ///< What sums are multiplied by before.
    bool rescaled;
};

/// Adds weighted values to the sums of N queries, in 16 * Columns numbers: one chain over ascending lanes.
template <std::size_t N, std::size_t Columns, class Reader>
inline void add_strips(const Reader& values, std::size_t column, const code_weights<N>& weights, float* to,
                       std::size_t stride, code_fetch& ahead) noexcept {
    unrolled<Columns>([&](auto) KVCACHE_INLINE { ahead.some(); });
    constexpr std::size_t vectors = Columns * native_parts;
    native_floats sums[N * vectors];
    unrolled<N * vectors>([&](auto i) KVCACHE_INLINE {
        sums[i] = native_floats::load_unaligned(to + i / vectors * stride + i % vectors * native_lanes);
    });
    if (weights.rescaled)
        unrolled<N * vectors>([&](auto i)
                                  KVCACHE_INLINE { sums[i] = sums[i] * native_floats(weights.rescale[i / vectors]); });
    for (std::size_t lane = 0; lane < tile_tokens; ++lane)
        unrolled<Columns>([&](auto c) KVCACHE_INLINE {
            const f32x16 numbers = values(lane, column + c);
            unrolled<N>([&](auto i) KVCACHE_INLINE {
                const native_floats weight(weights.lanes[i][lane]);
                unrolled<native_parts>([&](auto p) KVCACHE_INLINE {
                    auto& sum = sums[i * vectors + c * native_parts + p];
                    sum = fused(weight, numbers.part[p], sum);
                });
            });
        });
    unrolled<N * vectors>([&](auto i) KVCACHE_INLINE {
        sums[i].store_unaligned(to + i / vectors * stride + i % vectors * native_lanes);
    });
}

/// The same for columns [column, last), as many at once as fit.
template <std::size_t N, std::size_t Columns, class Reader>
inline void add_columns_of(const Reader& values, std::size_t column, std::size_t last, const code_weights<N>& weights,
                           float* to, std::size_t stride, code_fetch& ahead) noexcept {
    for (; column + Columns <= last; column += Columns)
        add_strips<N, Columns>(values, column, weights, to + column * 16, stride, ahead);
    if constexpr (Columns > 1)
        add_columns_of<N, Columns / 2>(values, column, last, weights, to, stride, ahead);
}

} // namespace kvcache::detail
