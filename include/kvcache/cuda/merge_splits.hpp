// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/cuda/device_math.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI { namespace cuda {

/// Merges the splits of each query in ascending order: weighted sums divided by the sum of the weights. A sequence
/// without rows gets zeros. A block processes one query head of one sequence.
struct merge_splits {
    static constexpr unsigned threads = 128;

    const std::uint32_t* split_begin = nullptr; ///< (sequences + 1), in splits
    const float* sums = nullptr;                ///< (splits, heads, head_dim)
    const float* largest = nullptr;             ///< (splits, heads)
    const float* totals = nullptr;              ///< (splits, heads)
    std::uint32_t sequences = 0;
    std::uint32_t heads = 1;
    std::uint32_t head_dim = 0;
    float* out = nullptr; ///< (sequences, heads, head_dim)

    [[nodiscard]] std::uint64_t blocks() const noexcept { return std::uint64_t{sequences} * heads; }
    [[nodiscard]] std::size_t shared_bytes() const noexcept { return 0; }

    template <class Group>
    KVCACHE_HOST_DEVICE void operator()(Group& group) const {
        const std::uint64_t sequence = group.block() / heads, head = group.block() % heads;
        const std::uint32_t begin = split_begin[sequence], end = split_begin[sequence + 1];
        group.alone([&](unsigned thread) {
            float most = -INFINITY;
            for (std::uint32_t split = begin; split < end; ++split)
                most = larger_or_none(largest[std::uint64_t{split} * heads + head], most);
            for (std::uint32_t d = thread; d < head_dim; d += threads) {
                float total = 0.0f, sum = 0.0f;
                for (std::uint32_t split = begin; split < end; ++split) {
                    const std::uint64_t at = std::uint64_t{split} * heads + head;
                    const float weight = power_of_two(plus(largest[at], -most));
                    total = fused(weight, totals[at], total);
                    sum = fused(weight, sums[at * head_dim + d], sum);
                }
                out[group.block() * head_dim + d] = begin == end ? 0.0f : divided(sum, total);
            }
        });
    }
};

}}} // namespace kvcache::cuda
