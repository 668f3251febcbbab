// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/kernel/math.hpp>
#include <kvcache/kernel/rope.hpp>
#include <kvcache/model/rope_config.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

// The part of each pair's frequency that YaRN scales by the factor, in [0, 1]. (head_dim / 2)
[[nodiscard]] inline std::vector<double> yarn_ramp(const rope_config& config, std::size_t head_dim) {
    constexpr double two_pi = 6.283185307179586;
    const auto dimension = [&](double turns) {
        return static_cast<double>(head_dim) * portable_math::log(config.original_max_positions / (turns * two_pi)) /
               (2.0 * portable_math::log(config.theta));
    };
    double low = dimension(config.beta_fast), high = dimension(config.beta_slow);
    if (config.truncate) {
        low = std::floor(low);
        high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, static_cast<double>(head_dim - 1));
    std::vector<double> ramp(head_dim / 2);
    for (std::size_t i = 0; i < ramp.size(); ++i)
        ramp[i] = std::clamp((static_cast<double>(i) - low) / (high == low ? 0.001 : high - low), 0.0, 1.0);
    return ramp;
}

} // namespace detail

/// Returns the RoPE of a configuration, with its scaling applied to the frequencies (formulas at rope_config), for
/// heads of which the first `rotated` dimensions are rotated. Requires: the configuration is checked.
[[nodiscard]] inline rope make_rope(const rope_config& config, std::size_t head_dim, std::size_t rotated) {
    constexpr double two_pi = 6.283185307179586;
    std::vector<double> frequencies = rope::standard_frequencies(rotated, config.theta), ramp;
    if (config.scaling == rope_config::kind::yarn)
        ramp = detail::yarn_ramp(config, rotated);
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
        case rope_config::kind::yarn:
            f = std::fma(1.0 - ramp[i], f, ramp[i] * (f / config.factor));
            break;
        }
    }
    if (config.turning != 0)
        frequencies.resize(config.turning);
    frequencies.resize(head_dim / 2); // those of dimensions that are not rotated are 0
    return rope(std::move(frequencies));
}

/// The same for heads that are rotated whole.
[[nodiscard]] inline rope make_rope(const rope_config& config, std::size_t head_dim) {
    return make_rope(config, head_dim, head_dim);
}

}} // namespace kvcache
