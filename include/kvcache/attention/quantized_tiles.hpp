// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/quantized_kernels.hpp>
#include <kvcache/attention/tile_kernels.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/side_coder.hpp>
#include <kvcache/core/compiled.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/kernel/simd.hpp>
#include <kvcache/kernel/strided_rows.hpp>
#include <kvcache/kernel/weighted_codes.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <type_traits>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Forces the values at `at` to be read from memory: a compiler that knows them splits vectors into scalars.
inline void in_memory(const void* at) noexcept {
#if defined(__GNUC__)
    asm volatile("" : : "r"(at) : "memory");
#else
    static_cast<void>(at);
#endif
}

/// Quantized values of a tile and the integer weights of N queries, in units of their largest one. The weights are
/// multiplied by the scales of each group before quantization; with channels the sums are multiplied by the steps of
/// each element of head_dim afterwards. Sums are exact over the lanes of a tile, and one chain over tiles.
template <unsigned Bits, bool Linear, bool Channels, std::size_t N>
class weighted_tile {
public:
    static constexpr std::size_t at_once = Channels ? 1 : 8; ///< Groups whose weights are quantized together.

    /// `groups`: groups of head_dim; 1 with channels.
    void take(const codec::quantized_operand& values, std::size_t head_dim, std::size_t groups,
              const query_weights& weights) noexcept {
        codes_ = codec::detail::packed_quants<Bits>(codec::kv_kind::values, head_dim).view(values.codes, values.table);
        scales_ = values.scales;
        columns_ = padded_head_dim(head_dim) / 16;
        rescaled_ = *weights.rescaled;
        rescale_ = weights.rescale;
        f32x16 most = f32x16::broadcast(1.0f); // largest magnitude of a lane's scales
        if constexpr (!Channels) {
            most = f32x16::zero();
            for (std::size_t g = 0; g < groups; ++g)
                most = max(size_of(f32x16::load(scales_ + g * tile_tokens)), most);
        }
        f32x16 lanes[N], sizes[N];
        KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) {
            lanes[i] = f32x16::load(weights.lanes_of(i, 0));
            sizes[i] = lanes[i] * most;
        }
        if constexpr (Channels)
            sum(lanes, all_);
        constexpr auto limit = static_cast<float>(operand_for<Bits>::largest);
        float top[N], by[N];
        largest(sizes, top);
        to_memory(top);
        for (std::size_t i = 0; i < N; ++i)
            unit_[i] = top[i] / limit;
        for (std::size_t i = 0; i < N; ++i)
            by[i] = limit / (top[i] > least_size ? top[i] : std::numeric_limits<float>::infinity());
        to_memory(by);
        KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) lanes_[i] = lanes[i] * f32x16::broadcast(by[i]);
    }

    /// Quantizes the weights of groups [first, last).
    void put(std::size_t first, std::size_t last) noexcept {
        if constexpr (Channels) {
            whole_[0].put(codes_, lanes_);
        } else {
            for (std::size_t g = first; g < last; ++g) {
                const f32x16 scales = f32x16::load(scales_ + g * tile_tokens);
                f32x16 weighs[N];
                KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) weighs[i] = lanes_[i] * scales;
                whole_[g - first].put(codes_, weighs);
            }
        }
    }

    /// Adds a column to the sums of N queries. `g`: its group, counted from the first group whose weights are
    /// quantized.
    KVCACHE_INLINE void add(std::size_t column, std::size_t g, f32x16 (&sums)[N]) const noexcept {
        if (rescaled_)
            KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) sums[i] =
                sums[i] * f32x16::broadcast(rescale_[i * most_tiles]);
        f32x16 dots[N];
        whole_[g].dots(codes_, column, dots);
        if constexpr (Channels) {
            const f32x16 step = f32x16::load(scales_ + column * 16);
            const f32x16 middle = fma(step, f32x16::broadcast(8.0f),
                                      f32x16::load(scales_ + (columns_ + column) * 16)); // for codes from -8 on
            KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) sums[i] =
                fma(dots[i] * f32x16::broadcast(unit_[i]), step, fma(f32x16::broadcast(all_[i]), middle, sums[i]));
        } else {
            KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) sums[i] =
                fma(dots[i], f32x16::broadcast(unit_[i]), sums[i]);
        }
    }

private:
    f32x16 lanes_[N]; // divided by unit_
    float unit_[N], all_[N];
    const float* rescale_; // (N, most_tiles)
    code_quads<Bits> codes_;
    const half* scales_;
    std::size_t columns_;
    bool rescaled_;
    column_weights<Bits, Linear, N> whole_[at_once];
};

/// Adds the weighted values of the tiles from `begin` on to the sums of N queries, in all columns. The weights of all
/// tiles are quantized first, so that no tile waits for another's sums. The values are all in one format and group.
/// `to`: the sums. (N, padded_head_dim) Prefetches `ahead` meanwhile.
template <unsigned Bits, bool Linear, bool Channels, std::size_t N>
inline void add_dots(std::span<const attention_tile> tiles, std::size_t begin, const query_weights& weights,
                     std::size_t head_dim, rows_out to, const code_fetch& ahead) noexcept {
    using taking = weighted_tile<Bits, Linear, Channels, N>;
    const std::size_t end = tiles.size();
    const codec::quantized_operand& like = tiles[begin].codes.values;
    const std::size_t columns = padded_head_dim(head_dim) / 16;
    const std::size_t each = Channels ? columns : (like.group + 15) / 16; // columns of a group
    const std::size_t groups = (columns + each - 1) / each;
    taking taken[most_tiles];
    for (std::size_t t = begin; t < end; ++t) {
        ahead.fetch(t, ahead.before_weighing());
        taken[t].take(tiles[t].codes.values, head_dim, groups, weights.from(0, t));
    }
    for (std::size_t first = 0; first < groups; first += taking::at_once) {
        const std::size_t last = std::min(first + taking::at_once, groups);
        for (std::size_t t = begin; t < end; ++t)
            taken[t].put(first, last);
        in_memory(taken);
        std::size_t column = first * each;
        for (std::size_t g = 0; g < last - first; ++g)
            for (const std::size_t behind = std::min(column + each, columns); column < behind; ++column) {
                const auto bytes = ahead.with_column(column);
                f32x16 sums[N];
                KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) sums[i] =
                    f32x16::load(to.data + i * to.stride + column * 16);
                for (std::size_t t = begin; t < end; ++t) {
                    ahead.fetch(t, bytes);
                    taken[t].add(column, g, sums);
                }
                KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) sums[i].store(to.data + i * to.stride + column * 16);
            }
    }
}

/// Whether keys in a format are multiplied with quantized queries, unscaled or scaled by channel steps.
[[nodiscard]] constexpr bool wants_quantized_queries(codec::quant_format format) noexcept {
    return format == codec::quant_format::int8 || format == codec::quant_format::int4 ||
           format == codec::quant_format::int3 || format == codec::quant_format::int2 ||
           format == codec::quant_format::channels;
}

/// Maximum number of queries that are multiplied with codes together.
inline constexpr std::size_t queries_of_codes = 4;

/// Attention arithmetic on tiles that are read in quantized form. The bits of a query depend on no other query and not
/// on the number of tiles in a call. Formats of 16-bit floats give the same bits as the decoded tile. `Most`: maximum
/// number of queries that are multiplied with codes together.
template <std::size_t Most>
class quantized_tiles {
public:
    quantized_tiles(std::size_t head_dim, std::size_t capacity)
        : head_dim_(head_dim),
          width_(padded_head_dim(head_dim)),
          plain_(capacity * width_),
          whole_(head_dim, capacity),
          bytes_(head_dim, capacity),
          scaled_(head_dim, Most) {}

    /// Sets the values of query `q`, times `scale`. (head_dim)
    void place(std::size_t q, const float* numbers, float scale) noexcept {
        float* const own = plain_.data() + q * width_;
        for (std::size_t d = 0; d < head_dim_; ++d)
            own[d] = numbers[d] * scale;
        whole_.place(q, own);
        bytes_.place(q, own);
    }

    /// Scores of `count` queries from `first` on, up to Most at a time, with tiles that all have the key format and
    /// table of the first one. queries: (head_dim, count), scores: (count, most_tiles, 16). Prefetches `ahead`
    /// meanwhile.
    void score(std::span<const attention_tile> tiles, const float* queries, std::size_t first, std::size_t count,
               float* scores, const code_fetch& ahead);

    /// Returns whether the values of two tiles can be added in one call.
    [[nodiscard]] static bool go_together(const codec::quantized_operand& a,
                                          const codec::quantized_operand& b) noexcept {
        return a.format == b.format && a.table == b.table && a.group == b.group;
    }

    /// Adds the weighted values of the tiles from `begin` on, whose values go together, to the sums of `count` queries,
    /// up to Most at a time. `weights`: of these queries and all tiles. `to`: the sums. (count, padded_head_dim)
    /// Prefetches `ahead` meanwhile.
    void add(std::span<const attention_tile> tiles, std::size_t begin, const query_weights& weights, std::size_t count,
             rows_out to, const code_fetch& ahead) const;

private:
    template <class Number>
    void by_numbers(std::span<const attention_tile> tiles, const float* queries, std::size_t count, float* scores);
    template <unsigned Bits>
    void by_dots(std::span<const attention_tile> tiles, std::size_t first, std::size_t count, float* scores,
                 const code_fetch& ahead);
    void by_channels(std::span<const attention_tile> tiles, std::size_t first, std::size_t count, float* scores,
                     const code_fetch& ahead);
    template <std::size_t N, class Some>
    static void together(std::size_t first, std::size_t count, const Some& some);

    std::size_t head_dim_;
    std::size_t width_;
    aligned_vector<float> plain_; // queries (capacity, width)
    quantized_queries<int16_operand> whole_;
    quantized_queries<int8_operand> bytes_;
    quantized_queries<int8_operand> scaled_; // queries times the steps of the channels
};

[[nodiscard]] inline float* scores_of(float* scores, std::size_t q, std::size_t t) noexcept {
    return scores + (q * most_tiles + t) * tile_tokens;
}

// Calls some.operator()<N>(first) for queries [first, count), N at a time, the rest with N halved.
template <std::size_t Most>
template <std::size_t N, class Some>
void quantized_tiles<Most>::together(std::size_t first, std::size_t count, const Some& some) {
    for (; first + N <= count; first += N)
        some.template operator()<N>(first);
    if constexpr (N > 1)
        together<N / 2>(first, count, some);
}

// Fewer queries take more tiles at once.
template <std::size_t Most>
template <class Number>
void quantized_tiles<Most>::by_numbers(std::span<const attention_tile> tiles, const float* queries, std::size_t count,
                                       float* scores) {
    const auto reads = [&](std::size_t t) {
        return wide_reader<Number>{reinterpret_cast<const Number*>(tiles[t].codes.keys.codes)};
    };
    together<Most>(0, count, [&]<std::size_t N>(std::size_t q) {
        constexpr std::size_t many = tiles_together(N);
        std::size_t t = 0;
        for (; t + many <= tiles.size(); t += many) {
            wide_reader<Number> some[many];
            for (std::size_t i = 0; i < many; ++i)
                some[i] = reads(t + i);
            score_strips<N, many>(queries + q, count, head_dim_, some, scores_of(scores, q, t));
        }
        for (; many > 1 && t < tiles.size(); ++t) {
            const wide_reader<Number> alone[] = {reads(t)};
            score_strips<N, 1>(queries + q, count, head_dim_, alone, scores_of(scores, q, t));
        }
    });
}

template <std::size_t Most>
template <unsigned Bits>
void quantized_tiles<Most>::by_dots(std::span<const attention_tile> tiles, std::size_t first, std::size_t count,
                                    float* scores, const code_fetch& ahead) {
    auto& queries = [&]() -> auto& {
        if constexpr (Bits == 8)
            return whole_;
        else
            return bytes_;
    }
    ();
    const bool linear = Bits == 4 && is_linear<Bits>(tiles.front().codes.keys.table);
    const bool deltas = tiles.front().codes.keys.base != nullptr;
    together<Most>(0, count, [&]<std::size_t N>(std::size_t q) {
        const code_fetch fetched = q == 0 ? ahead : code_fetch();
        float* const to = scores_of(scores, q, 0);
        const auto with = [&](auto is_linear) {
            score_dots<Bits, decltype(is_linear)::value, N>(queries, first + q, tiles, head_dim_, to, fetched);
            if constexpr (Bits < 8)
                if (deltas)
                    sum_deltas<Bits, decltype(is_linear)::value, N>(
                        queries, first + q, tiles, head_dim_, {plain_.data() + (first + q) * width_, N, width_}, to);
        };
        if (linear)
            with(std::bool_constant<Bits == 4>{});
        else
            with(std::false_type{});
    });
}

// Queries are multiplied by the steps once for all tiles that share the steps.
template <std::size_t Most>
void quantized_tiles<Most>::by_channels(std::span<const attention_tile> tiles, std::size_t first, std::size_t count,
                                        float* scores, const code_fetch& ahead) {
    for (std::size_t t = 0, last; t < tiles.size(); t = last) {
        const half* const steps = tiles[t].codes.keys.scales;
        for (last = t + 1; last < tiles.size() && tiles[last].codes.keys.scales == steps;)
            ++last;
        together<Most>(0, count, [&]<std::size_t N>(std::size_t q) {
            f32x16 sums[N];
            KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) sums[i] = f32x16::zero();
            const std::size_t width = width_;
            const float* const own = plain_.data() + (first + q) * width;
            scaled_.template place_together<N>(0, [&](std::size_t d, f32x16(&x)[N]) KVCACHE_INLINE {
                const f32x16 step = f32x16::load(steps + d);
                const f32x16 middle = fma(step, f32x16::broadcast(8.0f), f32x16::load(steps + width + d));
                KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) {
                    x[i] = f32x16::load(own + i * width + d);
                    sums[i] = fma(x[i], middle, sums[i]);
                    x[i] = x[i] * step;
                }
            });
            float middle[N];
            sum(sums, middle);
            for (std::size_t each = t; each < last; ++each) {
                if (q == 0)
                    ahead.fetch(each, ahead.before_scoring());
                score_channels<N>(scaled_, tiles[each].codes.keys, head_dim_, middle, scores_of(scores, q, each));
            }
        });
    }
}

template <std::size_t Most>
void quantized_tiles<Most>::score(std::span<const attention_tile> tiles, const float* queries, std::size_t first,
                                  std::size_t count, float* scores, const code_fetch& ahead) {
    switch (tiles.front().codes.keys.format) {
    case codec::quant_format::none:
        break;
    case codec::quant_format::bf16:
        by_numbers<bfloat16>(tiles, queries, count, scores);
        break;
    case codec::quant_format::f16:
        by_numbers<half>(tiles, queries, count, scores);
        break;
    case codec::quant_format::channels:
        by_channels(tiles, first, count, scores, ahead);
        break;
    case codec::quant_format::int8:
        by_dots<8>(tiles, first, count, scores, ahead);
        break;
    case codec::quant_format::int4:
        by_dots<4>(tiles, first, count, scores, ahead);
        break;
    case codec::quant_format::int3:
        by_dots<3>(tiles, first, count, scores, ahead);
        break;
    case codec::quant_format::int2:
        by_dots<2>(tiles, first, count, scores, ahead);
        break;
    }
}

template <std::size_t Most>
void quantized_tiles<Most>::add(std::span<const attention_tile> tiles, std::size_t begin, const query_weights& weights,
                                std::size_t count, rows_out to, const code_fetch& ahead) const {
    const auto for_some = [&](const auto& body) {
        together<Most>(0, count, [&]<std::size_t N>(std::size_t i) {
            body(weights.from(i, 0), rows_out{to.data + i * to.stride, to.stride},
                 std::integral_constant<std::size_t, N>{});
        });
    };
    const auto by_numbers = [&]<class Number>(const Number*) {
        for_some([&](const query_weights& own, rows_out sums, auto n) {
            constexpr std::size_t some = decltype(n)::value;
            for (std::size_t t = begin; t < tiles.size(); ++t)
                add_columns_of<some, columns_together(some)>(
                    wide_reader<Number>{reinterpret_cast<const Number*>(tiles[t].codes.values.codes), width_ / 16}, 0,
                    width_ / 16, own.from(0, t), sums,
                    [&](std::size_t column) KVCACHE_INLINE { ahead.fetch(t, ahead.with_column(column)); });
        });
    };
    const auto by_dots = [&](auto bits, auto linear, auto channels) {
        for_some([&](const query_weights& own, rows_out sums, auto n) {
            add_dots<decltype(bits)::value, decltype(linear)::value, decltype(channels)::value, decltype(n)::value>(
                tiles, begin, own, head_dim_, sums, ahead);
        });
    };
    const codec::quantized_operand& values = tiles[begin].codes.values;
    switch (values.format) {
    case codec::quant_format::none:
        break;
    case codec::quant_format::bf16:
        by_numbers(static_cast<const bfloat16*>(nullptr));
        break;
    case codec::quant_format::f16:
        by_numbers(static_cast<const half*>(nullptr));
        break;
    case codec::quant_format::int8:
        by_dots(std::integral_constant<unsigned, 8>{}, std::false_type{}, std::false_type{});
        break;
    case codec::quant_format::channels:
        by_dots(std::integral_constant<unsigned, 4>{}, std::true_type{}, std::true_type{});
        break;
    case codec::quant_format::int4:
        if (is_linear<4>(values.table))
            by_dots(std::integral_constant<unsigned, 4>{}, std::true_type{}, std::false_type{});
        else
            by_dots(std::integral_constant<unsigned, 4>{}, std::false_type{}, std::false_type{});
        break;
    case codec::quant_format::int3:
        by_dots(std::integral_constant<unsigned, 3>{}, std::false_type{}, std::false_type{});
        break;
    case codec::quant_format::int2:
        by_dots(std::integral_constant<unsigned, 2>{}, std::false_type{}, std::false_type{});
        break;
    }
}

#if KVCACHE_COMPILED
extern template void quantized_tiles<queries_of_codes>::score(std::span<const attention_tile>, const float*,
                                                              std::size_t, std::size_t, float*, const code_fetch&);
extern template void quantized_tiles<queries_of_codes>::add(std::span<const attention_tile>, std::size_t,
                                                            const query_weights&, std::size_t, rows_out,
                                                            const code_fetch&) const;
#endif

}}} // namespace kvcache::detail
