// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/kernel/math.hpp>

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

}} // namespace kvcache
