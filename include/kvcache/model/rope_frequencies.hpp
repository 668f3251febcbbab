// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/kernel/rope.hpp>
#include <kvcache/model/config.hpp>

#include <cstddef>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Returns the RoPE of a configuration, with its scaling applied to the frequencies (formulas at rope_config).
/// Requires: the configuration is checked.
[[nodiscard]] inline rope make_rope(const rope_config& config, std::size_t head_dim) {
    constexpr double two_pi = 6.283185307179586;
    std::vector<double> frequencies = rope::standard_frequencies(head_dim, config.theta);
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
        double& f = frequencies[i];
        switch (config.scaling) {
        case rope_config::kind::none:
            break;
        case rope_config::kind::linear:
            f /= config.factor;
            break;
        case rope_config::kind::llama3: {
            const double turns = config.original_max_positions * f / two_pi; // over the original context
            if (turns < config.low_freq_factor) {
                f /= config.factor;
            } else if (turns <= config.high_freq_factor) {
                const double span = config.high_freq_factor - config.low_freq_factor;
                const double s = (turns - config.low_freq_factor) / span;
                f = std::fma(1.0 - s, f / config.factor, s * f);
            }
            break;
        }
        case rope_config::kind::factors:
            f /= static_cast<double>(config.factors[i]);
            break;
        }
    }
    return rope(std::move(frequencies));
}

}} // namespace kvcache
