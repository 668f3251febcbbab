// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/quantized_kernels.hpp>
#include <kvcache/codec/packed_quants.hpp>
#include <kvcache/codec/quantized_operand.hpp>
#include <kvcache/kernel/column_dot.hpp>
#include <kvcache/kernel/largest.hpp>
#include <kvcache/kernel/strided_rows.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>

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

}}} // namespace kvcache::detail
