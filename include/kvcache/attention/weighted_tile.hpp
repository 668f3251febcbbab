// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/code_kernels.hpp>
#include <kvcache/codec/packed_codes.hpp>
#include <kvcache/codec/side_codes.hpp>
#include <kvcache/kernel/column_dot.hpp>
#include <kvcache/kernel/largest.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>

namespace kvcache::inline KVCACHE_ABI::detail {

/// What was written here is read from memory: a compiler that knows the numbers takes vectors apart for them.
inline void in_memory(const void* at) noexcept {
#if defined(__GNUC__)
    asm volatile("" : : "r"(at) : "memory");
#else
    static_cast<void>(at);
#endif
}

/// Values of a tile that are whole numbers, and what N queries weight them with: whole numbers too, in units of their
/// largest. They are multiplied by the lanes' scales of each group before, or the sums by the steps of each of head_dim
/// behind. Exact over the lanes of a tile, one chain over tiles.
template <unsigned Bits, bool Linear, bool Channels, std::size_t N>
class weighted_tile {
public:
    static constexpr std::size_t at_once = Channels ? 1 : 8; ///< Groups whose weights are rounded together.

    /// `groups`: of head_dim; of channels one.
    void take(const side_codes& values, std::size_t head_dim, std::size_t groups,
              const code_weights& weights) noexcept {
        codes_ = packed_codes<Bits>(page_side::values, head_dim).view(values.codes, values.table);
        scales_ = values.scales;
        columns_ = value_width(head_dim) / 16;
        rescaled_ = weights.rescaled;
        rescale_ = weights.rescale;
        f32x16 most = f32x16::broadcast(1.0f); // the largest size of a lane's scales
        if constexpr (!Channels) {
            most = f32x16::zero();
            for (std::size_t g = 0; g < groups; ++g)
                most = max(size_of(f32x16::load(scales_ + g * tile_tokens)), most);
        }
        f32x16 lanes[N], sizes[N];
        KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) {
            lanes[i] = f32x16::load(weights.of(i));
            sizes[i] = lanes[i] * most;
        }
        if constexpr (Channels)
            sum(lanes, all_);
        constexpr auto limit = static_cast<float>(numbers_that_meet<Bits>::largest);
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

    /// Rounds the weights of groups [first, last).
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

    /// Adds a column, of group `g` of those whose weights are rounded, to the sums of N queries.
    KVCACHE_INLINE void add(std::size_t column, std::size_t g, f32x16 (&sums)[N]) const noexcept {
        if (rescaled_)
            KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) sums[i] =
                sums[i] * f32x16::broadcast(rescale_[i * most_tiles]);
        f32x16 dots[N];
        whole_[g].dots(codes_, column, dots);
        if constexpr (Channels) {
            const f32x16 step = f32x16::load(scales_ + column * 16);
            const f32x16 middle = fma(step, f32x16::broadcast(8.0f),
                                      f32x16::load(scales_ + (columns_ + column) * 16)); // of codes from -8 on
            KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) sums[i] =
                fma(dots[i] * f32x16::broadcast(unit_[i]), step, fma(f32x16::broadcast(all_[i]), middle, sums[i]));
        } else {
            KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) sums[i] =
                fma(dots[i], f32x16::broadcast(unit_[i]), sums[i]);
        }
    }

private:
    f32x16 lanes_[N]; // in units
    float unit_[N], all_[N];
    const float* rescale_; // (N, most_tiles)
    code_quads<Bits> codes_;
    const half* scales_;
    std::size_t columns_;
    bool rescaled_;
    column_weights<Bits, Linear, N> whole_[at_once];
};

/// Adds weighted values of tiles [begin, end) to the sums of N queries, in 16 * Columns numbers. Weights of all are
/// rounded first, so that one tile's need not wait for another's sums. `tile(t)` gives its values, all in one format
/// and group, `weights(t)` what they are weighted with, `ahead` is fetched meanwhile.
template <unsigned Bits, bool Linear, bool Channels, std::size_t N, class Tile, class Weights>
inline void add_dots(std::size_t begin, std::size_t end, const Tile& tile, const Weights& weights, std::size_t head_dim,
                     float* to, std::size_t stride, const code_fetch& ahead) noexcept {
    using taking = weighted_tile<Bits, Linear, Channels, N>;
    const side_codes& like = tile(begin);
    const std::size_t columns = value_width(head_dim) / 16;
    const std::size_t each = Channels ? columns : (like.group + 15) / 16; // of a group
    const std::size_t groups = (columns + each - 1) / each;
    taking taken[most_tiles];
    for (std::size_t t = begin; t < end; ++t) {
        ahead.fetch(t, ahead.before_weighing());
        taken[t].take(tile(t), head_dim, groups, weights(t));
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
                    f32x16::load(to + i * stride + column * 16);
                for (std::size_t t = begin; t < end; ++t) {
                    ahead.fetch(t, bytes);
                    taken[t].add(column, g, sums);
                }
                KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) sums[i].store(to + i * stride + column * 16);
            }
    }
}

} // namespace kvcache::detail
