// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/tile_kernels.hpp>
#include <kvcache/codec/side_coder.hpp>
#include <kvcache/core/abi.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/kernel/simd.hpp>
#include <kvcache/kernel/strided_rows.hpp>
#include <kvcache/kernel/weighted_codes.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Smallest magnitude that is not treated as zero: the inverse of a smaller one could overflow.
inline constexpr float least_size = 1e-30f;

/// Queries quantized to integers, for integer keys. Each has a scale, its largest magnitude divided by the largest
/// integer. Sums of integer products are exact, so their order is free. Queries that are multiplied with codes together
/// are interleaved, four values of each in turn, so that one pointer reads them all.
template <class Numbers>
class quantized_queries {
public:
    static constexpr std::size_t max_queries = 4; ///< Maximum number of queries multiplied with codes together.

    quantized_queries(std::size_t head_dim, std::size_t capacity)
        : sixteens_((head_dim + 15) / 16),
          // So that head_dim products of 127 and the largest integer fit an int32.
          largest_(static_cast<float>(std::min<std::size_t>(Numbers::largest, 2147483647 / 127 / (head_dim + 1)))),
          single_(capacity, sixteens_),
          interleaved_(capacity, sixteens_),
          interleaved_count_(capacity),
          scales_(capacity),
          read_(max_queries * sixteens_ * 16) {}

    /// Queries in the layout of the integer dot products, padded with zeros.
    struct view {
        const std::byte* codes;     ///< (head_dim / 4, queries, bytes of four values)
        const std::int32_t* before; ///< Sums of the values before each block of 16, and of all: (sixteens + 1, queries)
    };

    /// Returns N queries from `first` on, interleaved.
    template <std::size_t N>
    [[nodiscard]] view together(std::size_t first) noexcept {
        if constexpr (N == 1)
            return single_.from(first, sixteens_);
        if (interleaved_count_[first] != N)
            interleave<N>(first);
        return interleaved_.from(first, sixteens_);
    }
    /// Factor that dequantizes products with the query.
    [[nodiscard]] float scale(std::size_t q) const noexcept { return scales_[q]; }

    /// Quantizes query `q`. (head_dim, padded with zeros to a multiple of 16)
    void place(std::size_t q, const float* numbers) noexcept {
        forget(q, q + 1);
        code<1>(q, single_, [&](std::size_t d, f32x16(&x)[1]) KVCACHE_INLINE { x[0] = f32x16::load(numbers + d); });
    }
    /// Quantizes the N queries from `first` on, which will be read together. read(d, x) gives elements [d, d + 16) of
    /// each. It is called once for each d, in ascending order, and gives zeros past head_dim.
    template <std::size_t N, class Read>
    KVCACHE_INLINE void place_together(std::size_t first, const Read& read) noexcept {
        forget(first, first + N);
        code<N>(first, N == 1 ? single_ : interleaved_, read);
        interleaved_count_[first] = N;
    }

private:
    struct memory {
        memory(std::size_t capacity, std::size_t sixteens)
            : codes(capacity * sixteens * Numbers::bytes), before(capacity * (sixteens + 1)) {}
        [[nodiscard]] view from(std::size_t q, std::size_t sixteens) const noexcept {
            return {codes.data() + q * sixteens * Numbers::bytes, before.data() + q * (sixteens + 1)};
        }
        aligned_vector<std::byte> codes;
        std::vector<std::int32_t> before;
    };

    // Invalidates the interleaved copies that contain queries [first, last).
    void forget(std::size_t first, std::size_t last) noexcept {
        for (std::size_t i = first - std::min(first, max_queries - 1); i < last; ++i)
            interleaved_count_[i] = 0;
    }

    template <std::size_t N, class Read>
    KVCACHE_INLINE void code(std::size_t first, memory& to, const Read& read) noexcept {
        f32x16 most[N], none[N];
        KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) most[i] = none[i] = f32x16::zero();
        float* kept = read_.data();
        const std::size_t width = sixteens_ * 16;
        for (std::size_t d = 0; d < width; d += 16, kept += N * 16) {
            f32x16 x[N];
            read(d, x);
            KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) {
                most[i] = max(size_of(x[i]), most[i]);
                none[i] = fma(x[i], f32x16::zero(), none[i]); // NaN where x is infinite or NaN
                x[i].store(kept + i * 16);
            }
        }
        float top[N], lost[N];
        kvcache::largest(most, top);
        kvcache::sum(none, lost);
        f32x16 inverse[N];
        KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) {
            inverse[i] = f32x16::broadcast(top[i] > least_size ? largest_ / top[i] : 0.0f);
            scales_[first + i] = top[i] / largest_ + lost[i];
        }
        std::byte* codes = to.codes.data() + first * sixteens_ * Numbers::bytes;
        std::int32_t* before = to.before.data() + first * (sixteens_ + 1);
        std::fill_n(before, N, 0);
        kept = read_.data();
        for (std::size_t s = sixteens_; s > 0; --s, kept += N * 16, codes += N * Numbers::bytes, before += N) {
            f32x16 x[N];
            KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) x[i] = f32x16::load(kept + i * 16) * inverse[i];
            std::int32_t sums[N];
            Numbers::put(x, codes, 1, sums);
            to_memory(sums);
            for (std::size_t i = 0; i < N; ++i)
                sums[i] += before[i];
            for (std::size_t i = 0; i < N; ++i)
                before[N + i] = sums[i];
        }
    }

    template <std::size_t N>
    void interleave(std::size_t first) noexcept {
        std::byte* codes = interleaved_.codes.data() + first * sixteens_ * Numbers::bytes;
        std::int32_t* before = interleaved_.before.data() + first * (sixteens_ + 1);
        for (std::size_t s = 0; s <= sixteens_; ++s)
            for (std::size_t i = 0; i < N; ++i)
                before[s * N + i] = single_.from(first + i, sixteens_).before[s];
        for (std::size_t s = 0; s < sixteens_; ++s, codes += N * Numbers::bytes) {
            const std::byte* from[N];
            for (std::size_t i = 0; i < N; ++i)
                from[i] = single_.from(first + i, sixteens_).codes + s * Numbers::bytes;
            kvcache::detail::interleave<Numbers::quad_bytes>(from, codes);
        }
        interleaved_count_[first] = N;
    }

    std::size_t sixteens_;
    float largest_;
    memory single_;                               // query by query
    memory interleaved_;                          // some together
    std::vector<std::uint8_t> interleaved_count_; // from each on; 0: none are interleaved
    std::vector<float> scales_;
    aligned_vector<float> read_; // (sixteens, some queries, 16)
};

/// Reader of a tile of 16-bit floats in strips of 16: of keys by element of head_dim, of values by 16 adjacent elements
/// of a row.
template <class Number>
struct wide_reader {
    const Number* numbers;
    std::size_t columns = 0; ///< Strips in a row of values.
    [[nodiscard]] KVCACHE_INLINE f32x16 operator()(std::size_t d) const noexcept {
        return f32x16::load(numbers + d * 16);
    }
    [[nodiscard]] KVCACHE_INLINE f32x16 operator()(std::size_t lane, std::size_t column) const noexcept {
        return f32x16::load(numbers + (lane * columns + column) * 16);
    }
};

/// Scores of N queries with Tiles tiles. Each score is one chain of multiply-adds over ascending head_dim, as in
/// `score`. queries: (head_dim, stride), scores: (N, most_tiles, 16)
template <std::size_t N, std::size_t Tiles, class Reader>
inline void score_strips(const float* queries, std::size_t stride, std::size_t head_dim, const Reader (&tiles)[Tiles],
                         float* scores) noexcept {
    constexpr std::size_t vectors = Tiles * native_parts;
    native_floats sums[N * vectors];
    KVCACHE_UNROLL for (std::size_t i = 0; i < N * vectors; ++i) sums[i] = native_floats(0.0f);
    for (std::size_t d = 0; d < head_dim; ++d, queries += stride)
        KVCACHE_UNROLL for (std::size_t t = 0; t < Tiles; ++t) {
            const f32x16 keys = tiles[t](d);
            KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) {
                const native_floats query(queries[i]);
                KVCACHE_UNROLL for (std::size_t p = 0; p < native_parts; ++p) {
                    auto& sum = sums[i * vectors + t * native_parts + p];
                    sum = fused(query, keys.part[p], sum);
                }
            }
        }
    KVCACHE_UNROLL for (std::size_t i = 0; i < N * vectors; ++i) sums[i].store_unaligned(
        scores + (i / vectors * most_tiles) * tile_tokens + i % vectors * native_lanes);
}

/// Prefetcher of the quantized tiles that come soon. It alternates cache lines of keys and of values, a few at a time
/// throughout the kernels: part of the prefetches are dropped if all are issued at once.
class code_fetch {
public:
    /// Steps before a tile's keys are scored, and before the weights of its values are quantized. One more step follows
    /// with each column of values.
    static constexpr std::size_t before_scores = 2, before_weights = 2;

    code_fetch() = default; ///< Prefetches nothing.
    /// Prefetches the tiles that follow these and have their size, in steps for `columns` columns.
    code_fetch(std::span<const attention_tile> tiles, std::size_t columns) noexcept {
        const codec::quantized_operand& like = tiles.front().codes.keys;
        const bool scored_by_dots = like.table != nullptr || like.format == codec::quant_format::int8;
        first_column_ = scored_by_dots ? before_scores + before_weights : 0;
        std::size_t most = 0;
        for (std::size_t t = 0; t < tiles.size() && tiles[t].ahead_key_codes != nullptr; ++t) {
            const std::size_t keys = tiles[t].codes.keys.bytes, values = tiles[t].codes.values.bytes;
            of_[t] = {tiles[t].ahead_key_codes, tiles[t].ahead_value_codes,
                      keys > values ? tiles[t].ahead_key_codes : tiles[t].ahead_value_codes, std::min(keys, values),
                      std::max(keys, values)};
            most = std::max(of_[t].most, most);
        }
        step_ = (most / (columns + first_column_) + 63) / 64 * 64;
    }

    /// Byte range of a tile that is prefetched in one step.
    struct bytes {
        std::size_t first, last;
    };
    [[nodiscard]] bytes before_scoring() const noexcept { return some(0, before_scores); }
    [[nodiscard]] bytes before_weighing() const noexcept { return some(before_scores, before_weights); }
    [[nodiscard]] bytes with_column(std::size_t c) const noexcept { return some(first_column_ + c, 1); }

    KVCACHE_INLINE void fetch(std::size_t t, const bytes& some) const noexcept {
        const one_tile& of = of_[t];
        std::size_t next = some.first;
        if (next >= of.most)
            return;
        for (const std::size_t last = std::min(some.last, of.both); next < last; next += 64) {
            prefetch(of.keys, next);
            prefetch(of.values, next);
        }
        for (const std::size_t last = std::min(some.last, of.most); next < last; next += 64)
            prefetch(of.longer, next);
    }

private:
    struct one_tile {
        const std::byte *keys, *values, *longer;
        std::size_t both, most; // bytes of both operands, and bytes of the longer one
    };
    [[nodiscard]] bytes some(std::size_t step, std::size_t steps) const noexcept {
        return {step * step_, (step + steps) * step_};
    }

    one_tile of_[most_tiles] = {};
    std::size_t step_ = 0, first_column_ = 0;
};

/// Zero-point correction for N queries: `by` times the sum of the query values between `first` and `last`, which are
/// running sums.
template <std::size_t N>
KVCACHE_INLINE inline void zero_point_terms(const std::int32_t* first, const std::int32_t* last, std::int32_t by,
                                            std::int32_t (&to)[N]) noexcept {
    std::int32_t between[N];
    for (std::size_t i = 0; i < N; ++i)
        between[i] = last[i] - first[i];
    for (std::size_t i = 0; i < N; ++i)
        to[i] = between[i] * by;
    to_memory(to);
}

/// Scores of the N queries from `first` on with tiles of quantized keys that share one table: one chain over ascending
/// groups. scores: (N, most_tiles, 16). Prefetches `ahead` meanwhile.
template <unsigned Bits, bool Linear, std::size_t N>
inline void score_dots(quantized_queries<operand_for<Bits>>& queries, std::size_t first,
                       std::span<const attention_tile> tiles, std::size_t head_dim, float* scores,
                       const code_fetch& ahead) noexcept {
    const auto asked = queries.template together<N>(first);
    const auto bytes = ahead.before_scoring();
    for (std::size_t t = 0; t < tiles.size(); ++t, scores += tile_tokens) {
        ahead.fetch(t, bytes);
        const codec::quantized_operand& keys = tiles[t].codes.keys;
        const auto codes =
            codec::detail::packed_quants<Bits>(codec::kv_kind::keys, head_dim).view(keys.codes, keys.table);
        const std::byte* numbers = asked.codes;
        const std::int32_t* before = asked.before;
        const half* scales = keys.scales;
        const std::size_t group = std::min(keys.group, head_dim);
        f32x16 sums[N];
        KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) sums[i] = f32x16::zero();
        for (std::size_t quad = 0, left = head_dim; left > 0;) {
            const std::size_t some = std::min(group, left), quads = (some + 3) / 4, sixteens = (some + 15) / 16;
            std::int32_t own[N];
            zero_point_terms(before, before + sixteens * N, first_of<Bits>(codes), own);
            f32x16 dots[N];
            dot_codes<Bits, Linear, N>(codes, quad, quads, numbers, own, dots);
            const f32x16 scale = f32x16::load(scales);
            KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) sums[i] = fma(dots[i], scale, sums[i]);
            quad += quads, left -= some, scales += tile_tokens;
            before += sixteens * N, numbers += quads * N * operand_for<Bits>::quad_bytes;
        }
        KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i)(sums[i] * f32x16::broadcast(queries.scale(first + i)))
            .store(scores + i * most_tiles * tile_tokens);
    }
}

/// Turns the products of N queries with tiles of deltas into scores: a row is the sum of its group's base and of all
/// deltas up to its own, and so is its product. The products of a group's earlier tiles are computed here if the tile
/// before is not in the same call. queries: (N, padded_head_dim), scores: (N, most_tiles, 16)
template <unsigned Bits, bool Linear, std::size_t N>
inline void sum_deltas(quantized_queries<operand_for<Bits>>& quantized, std::size_t first,
                       std::span<const attention_tile> tiles, std::size_t head_dim, rows_in queries,
                       float* scores) noexcept {
    float last[N]; // scores of the row before
    const auto sum_up = [&](float* of) KVCACHE_INLINE {
        KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) {
            float* const own = of + i * most_tiles * tile_tokens;
            (running_sums(f32x16::load(own)) + f32x16::broadcast(last[i])).store(own);
            last[i] = own[tile_tokens - 1];
        }
    };
    for (std::size_t t = 0; t < tiles.size(); ++t, scores += tile_tokens) {
        const codec::quantized_operand& keys = tiles[t].codes.keys;
        const bool follows =
            t > 0 && tiles[t - 1].codes.keys.base == keys.base && tiles[t - 1].codes.keys.before + 1 == keys.before;
        if (!follows) {
            f32x16 sums[N];
            KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) sums[i] = f32x16::zero();
            for (std::size_t d = 0; d < padded_head_dim(head_dim); d += 16)
                KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) sums[i] =
                    fma(f32x16::load(queries.data + i * queries.stride + d), f32x16::load(keys.base + d), sums[i]);
            sum(sums, last);
            attention_tile earlier = tiles[t];
            for (std::size_t back = keys.before; back > 0; --back) {
                alignas(64) float products[N * most_tiles * tile_tokens];
                earlier.codes.keys.codes = keys.codes - back * keys.stride;
                earlier.codes.keys.scales =
                    reinterpret_cast<const half*>(reinterpret_cast<const std::byte*>(keys.scales) - back * keys.stride);
                score_dots<Bits, Linear, N>(quantized, first, {&earlier, 1}, head_dim, products, code_fetch());
                sum_up(products);
            }
        }
        sum_up(scores);
    }
}

/// Scores with keys that have a step and a middle for each element of head_dim. The queries are already multiplied by
/// the steps; `middle` is their product with the middles. middle: (N)
template <std::size_t N>
inline void score_channels(quantized_queries<int8_operand>& queries, const codec::quantized_operand& keys,
                           std::size_t head_dim, const float* middle, float* scores) noexcept {
    const auto codes = codec::detail::packed_quants<4>(codec::kv_kind::keys, head_dim).view(keys.codes, keys.table);
    const auto asked = queries.template together<N>(0);
    std::int32_t own[N];
    zero_point_terms(asked.before, asked.before + (head_dim + 15) / 16 * N, first_of<4>(codes), own);
    f32x16 dots[N];
    dot_codes<4, true, N>(codes, 0, (head_dim + 3) / 4, asked.codes, own, dots);
    KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i)
        fma(dots[i], f32x16::broadcast(queries.scale(i)), f32x16::broadcast(middle[i]))
            .store(scores + i * most_tiles * tile_tokens);
}

/// Adds the weighted values of a tile to the sums of N queries, for 16 * Columns elements: one chain over ascending
/// lanes. `to`: the sums of the elements. `fetch(column)` prefetches the next tiles.
template <std::size_t N, std::size_t Columns, class Reader, class Fetch>
inline void add_strips(const Reader& values, std::size_t column, const query_weights& weights, rows_out to,
                       const Fetch& fetch) noexcept {
    KVCACHE_UNROLL for (std::size_t c = 0; c < Columns; ++c) fetch(column + c);
    constexpr std::size_t vectors = Columns * native_parts;
    native_floats sums[N * vectors];
    KVCACHE_UNROLL for (std::size_t i = 0; i < N * vectors; ++i) sums[i] =
        native_floats::load_unaligned(to.data + i / vectors * to.stride + i % vectors * native_lanes);
    if (*weights.rescaled)
        KVCACHE_UNROLL for (std::size_t i = 0; i < N * vectors; ++i) sums[i] =
            sums[i] * native_floats(weights.rescale_of(i / vectors, 0));
    for (std::size_t lane = 0; lane < tile_tokens; ++lane)
        KVCACHE_UNROLL for (std::size_t c = 0; c < Columns; ++c) {
            const f32x16 numbers = values(lane, column + c);
            KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) {
                const native_floats weight(weights.lanes_of(i, 0)[lane]);
                KVCACHE_UNROLL for (std::size_t p = 0; p < native_parts; ++p) {
                    auto& sum = sums[i * vectors + c * native_parts + p];
                    sum = fused(weight, numbers.part[p], sum);
                }
            }
        }
    KVCACHE_UNROLL for (std::size_t i = 0; i < N * vectors; ++i) sums[i].store_unaligned(
        to.data + i / vectors * to.stride + i % vectors * native_lanes);
}

/// The same for columns [column, last), Columns at a time, then in halves. `to`: the sums of column 0.
template <std::size_t N, std::size_t Columns, class Reader, class Fetch>
inline void add_columns_of(const Reader& values, std::size_t column, std::size_t last, const query_weights& weights,
                           rows_out to, const Fetch& fetch) noexcept {
    for (; column + Columns <= last; column += Columns)
        add_strips<N, Columns>(values, column, weights, rows_out{to.data + column * 16, to.stride}, fetch);
    if constexpr (Columns > 1)
        add_columns_of<N, Columns / 2>(values, column, last, weights, to, fetch);
}

}}} // namespace kvcache::detail
