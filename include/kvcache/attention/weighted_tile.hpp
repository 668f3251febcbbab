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

namespace kvcache::detail {

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
template <unsigned Bits, bool Linear, std::size_t N>
class weighted_tile {
public:
    static constexpr std::size_t at_once = 8; ///< Groups whose weights are rounded together.

    void take(const side_codes& values, std::size_t head_dim, const code_weights<N>& weights) noexcept {
        constexpr auto limit = static_cast<float>(numbers_that_meet<Bits>::largest);
        codes_ = packed_codes<Bits>(page_side::values, head_dim).view(values.codes, values.table);
        channels_ = Linear && values.format == code_format::channels;
        scales_ = values.scales;
        columns_ = value_width(head_dim) / 16;
        each_ = channels_ ? columns_ : (values.group + 15) / 16;
        rescaled_ = weights.rescaled;
        f32x16 most = f32x16::broadcast(1.0f); // the largest size of a lane's scales
        if (!channels_) {
            most = f32x16::zero();
            for (std::size_t first = 0, g = 0; first < columns_; first += each_, ++g) {
                const f32x16 scales = f32x16::load(scales_ + g * tile_tokens);
                most = max(max(scales, -scales), most);
            }
        }
        f32x16 sizes[N];
        for (std::size_t i = 0; i < N; ++i) {
            lanes_[i] = f32x16::load(weights.lanes[i]);
            sizes[i] = lanes_[i] * most;
            rescale_[i] = weights.rescale[i];
            all_[i] = channels_ ? sum(lanes_[i]) : 0.0f;
        }
        float top[N], by[N];
        largest(sizes, top);
        for (std::size_t i = 0; i < N; ++i) {
            unit_[i] = top[i] / limit;
            by[i] = limit / (top[i] > least_size ? top[i] : std::numeric_limits<float>::infinity());
        }
        for (std::size_t i = 0; i < N; ++i)
            lanes_[i] = lanes_[i] * f32x16::broadcast(by[i]);
    }

    /// Rounds the weights of the groups that begin with number `batch` * at_once. Returns: whether there are such.
    bool put(std::size_t batch) noexcept {
        begin_ = batch * at_once * each_;
        end_ = std::min(begin_ + at_once * each_, columns_);
        for (std::size_t first = begin_, some = 0; first < end_; first += each_, ++some) {
            if (channels_) {
                whole_[some].put(codes_, lanes_);
                continue;
            }
            const f32x16 scales = f32x16::load(scales_ + (batch * at_once + some) * tile_tokens);
            f32x16 weighs[N];
            unrolled<N>([&](auto i) KVCACHE_INLINE { weighs[i] = lanes_[i] * scales; });
            whole_[some].put(codes_, weighs);
        }
        return begin_ < end_;
    }

    /// Adds the columns of these groups to the sums of N queries, `stride` numbers from one to the next.
    void add(float* to, std::size_t stride, code_fetch& ahead) const noexcept {
        if (rescaled_)
            for (std::size_t i = 0; i < N; ++i)
                for (std::size_t c = begin_; c < end_; ++c) {
                    float* const at = to + i * stride + c * 16;
                    (f32x16::load(at) * f32x16::broadcast(rescale_[i])).store(at);
                }
        const f32x16 eight = f32x16::broadcast(8.0f);
        for (std::size_t first = begin_, some = 0; first < end_; first += each_, ++some)
            for (std::size_t c = first; c < std::min(first + each_, end_); ++c) {
                ahead.some();
                f32x16 dots[N];
                whole_[some].dots(codes_, c, dots);
                if (channels_) {
                    const f32x16 step = f32x16::load(scales_ + c * 16);
                    const f32x16 middle =
                        fma(step, eight, f32x16::load(scales_ + (columns_ + c) * 16)); // of codes from -8 on
                    unrolled<N>([&](auto i) KVCACHE_INLINE {
                        float* const at = to + i * stride + c * 16;
                        fma(dots[i] * f32x16::broadcast(unit_[i]), step,
                            fma(f32x16::broadcast(all_[i]), middle, f32x16::load(at)))
                            .store(at);
                    });
                } else {
                    unrolled<N>([&](auto i) KVCACHE_INLINE {
                        float* const at = to + i * stride + c * 16;
                        fma(dots[i], f32x16::broadcast(unit_[i]), f32x16::load(at)).store(at);
                    });
                }
            }
    }

private:
    f32x16 lanes_[N]; // in units
    float unit_[N], rescale_[N], all_[N];
    code_quads<Bits> codes_;
    const half* scales_;
    std::size_t columns_, each_; // columns of a group
    std::size_t begin_, end_;    // columns whose weights are rounded
    bool channels_, rescaled_;
    column_weights<Bits, Linear, N> whole_[at_once];
};

/// Adds weighted values of `count` tiles to the sums of N queries, in 16 * Columns numbers. Weights of all are rounded
/// first, so that one tile's need not wait for another's sums. `tile(t)` gives its values, `weights(t)` what they are
/// weighted with, `ahead[t]` is fetched meanwhile.
template <unsigned Bits, bool Linear, std::size_t N, class Tile, class Weights>
inline void add_dots(std::size_t count, const Tile& tile, const Weights& weights, std::size_t head_dim, float* to,
                     std::size_t stride, code_fetch* ahead) noexcept {
    weighted_tile<Bits, Linear, N> taken[most_tiles];
    for (std::size_t t = 0; t < count; ++t) {
        ahead[t].some(code_fetch::before_weights);
        taken[t].take(tile(t), head_dim, weights(t));
    }
    for (std::size_t batch = 0;; ++batch) {
        bool some = false;
        for (std::size_t t = 0; t < count; ++t)
            some = taken[t].put(batch) || some;
        if (!some)
            return;
        in_memory(taken);
        for (std::size_t t = 0; t < count; ++t)
            taken[t].add(to, stride, ahead[t]);
    }
}

} // namespace kvcache::detail
