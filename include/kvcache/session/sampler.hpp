// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/kernel/math.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcache {

/// Chooses tokens from logits. Token i of choice c is drawn with a number that is a function of (seed, c, i) alone, so
/// neither batching nor a cancelled draft changes what is said.
struct sampler {
    float temperature = 0.0f; ///< Zero or less: always the most likely token.
    std::uint64_t seed = 0;
    std::uint64_t choice = 0; ///< Which of several answers to one prompt.

    /// The token at place `index` of the answer. Requires: logits is not empty. Cost: O(vocabulary).
    [[nodiscard]] token_id draw(std::span<const float> logits, std::uint64_t index) const {
        expects(!logits.empty(), "a token is drawn from logits");
        const auto top = std::max_element(logits.begin(), logits.end());
        const auto best = static_cast<std::int32_t>(top - logits.begin());
        if (!(temperature > 0.0f))
            return token_id{best};

        std::vector<float> weights(logits.size());
        const f32x16 scale = f32x16::broadcast(1.0f / temperature), largest = f32x16::broadcast(*top);
        detail::by_sixteen(logits.size(), [&](std::size_t i, std::size_t n) {
            const f32x16 x = f32x16::load_up_to(logits.data() + i, n);
            exp((x - largest) * scale).store_up_to(weights.data() + i, n);
        });
        double total = 0.0;
        for (const float w : weights)
            total += static_cast<double>(w);
        const double target = uniform(index) * total;
        double below = 0.0; // compared with the target, not taken from it: nothing to contract
        for (std::size_t i = 0; i < weights.size(); ++i) {
            below += static_cast<double>(weights[i]);
            if (target < below)
                return token_id{static_cast<std::int32_t>(i)};
        }
        return token_id{best};
    }

    /// The number in [0, 1) that decides place `index`.
    [[nodiscard]] double uniform(std::uint64_t index) const noexcept {
        const std::uint64_t bits = mix(mix(mix(seed) ^ choice) ^ index);
        return static_cast<double>(bits >> 11) * 0x1p-53;
    }

private:
    // The finaliser of splitmix64 (Steele, Lea & Flood 2014).
    [[nodiscard]] static std::uint64_t mix(std::uint64_t x) noexcept {
        x += 0x9e3779b97f4a7c15u;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        return x ^ (x >> 31);
    }
};

} // namespace kvcache
