// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/kernel/math.hpp>

#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// RoPE parameters: how positions map to rotations. Every kind is a pure rotation of queries and keys; YaRN has a
/// factor on the scores besides.
///
/// The inverse frequency of pair i is f(i) = theta^(-2 i / head_dim), scaled as `scaling` says:
///
///     none     f
///     linear   f / factor
///     llama3   by wavelength w = 2 pi / f against original_max_positions L:
///                w < L / high_freq_factor    f
///                w > L / low_freq_factor     f / factor
///                between                     (1 - s) f / factor + s f,
///                                            s = (L / w - low_freq_factor) / (high_freq_factor - low_freq_factor)
///     factors  f / factors[i], and scores times attention_factor^2 (llama.cpp's form of llama3; Ding et al. 2024,
///     LongRoPE) yarn     (Peng et al. 2023, as transformers and llama.cpp compute it) between f and f / factor:
///                r f / factor + (1 - r) f,  r = (i - low) / (high - low) in [0, 1],
///                low = d(beta_fast), high = d(beta_slow),
///                d(turns) = head_dim log(original_max_positions / (2 pi turns)) / (2 log theta),
///                rounded down and up if `truncate`; and scores times attention_factor^2
///
/// Dimension i of a head is rotated with dimension i + head_dim / 2. Where RoPE rotates only the first dimensions of a
/// head, head_dim is their number here.
struct rope_config {
    enum class kind { none, linear, llama3, factors, yarn };

    double theta = 10000.0;
    kind scaling = kind::none;
    double factor = 1.0;                    ///< For linear, llama3 and yarn.
    double low_freq_factor = 1.0;           ///< For llama3.
    double high_freq_factor = 4.0;          ///< For llama3.
    double original_max_positions = 8192.0; ///< For llama3 and yarn: context length of the training before scaling.
    double beta_fast = 32.0;                ///< For yarn: pairs with more turns in that context keep their frequency.
    double beta_slow = 1.0;                 ///< For yarn: pairs with fewer turns are scaled by the factor.
    bool truncate = true;                   ///< For yarn: whether low and high are whole dimensions.
    double attention_factor =
        1.0; ///< For yarn and factors: factor of queries and of keys, usually 0.1 log(factor) + 1.
    std::vector<float> factors = {}; ///< For factors: one for each pair, (head_dim / 2).
    std::size_t turning = 0;         ///< Leading pairs that are rotated, the others have frequency 0; 0: all.

    friend bool operator==(const rope_config&, const rope_config&) = default;
};

/// YaRN's factor of queries and keys where a checkpoint says none.
[[nodiscard]] inline double yarn_attention_factor(double factor) noexcept {
    return factor > 1.0 ? std::fma(0.1, portable_math::log(factor), 1.0) : 1.0;
}

/// LongRoPE's factor of queries and keys where a checkpoint says none.
[[nodiscard]] inline double long_rope_attention_factor(double factor, double original_max_positions) noexcept {
    if (factor <= 1.0)
        return 1.0;
    return std::sqrt(1.0 + portable_math::log(factor) / portable_math::log(original_max_positions));
}

namespace detail {

[[nodiscard]] inline result<void> check_extent(std::string_view field, std::size_t value, std::size_t most) {
    if (value == 0 || value > most)
        return error{error_code::out_of_range, std::string(field),
                     std::string(field) + " is " + std::to_string(value) + "; it must be 1 to " + std::to_string(most)};
    return {};
}

[[nodiscard]] inline result<void> check_number(std::string_view field, double value, double least, double most) {
    if (!(std::isfinite(value) && value >= least && value <= most))
        return error{error_code::out_of_range, std::string(field),
                     std::string(field) + " is " + std::to_string(value) + "; it must be " + std::to_string(least) +
                         " to " + std::to_string(most)};
    return {};
}

/// Checks the parameters of a rotation, which errors call `name`.
[[nodiscard]] inline result<void> check_rope(const std::string& name, const rope_config& of, std::size_t head_dim) {
    const struct {
        std::string_view field;
        double value, least, most;
    } numbers[] = {
        {".theta", of.theta, 1.0, 1e15},
        {".factor", of.factor, 1e-3, 1e6},
        {".low_freq_factor", of.low_freq_factor, 1e-6, 1e6},
        {".high_freq_factor", of.high_freq_factor, 1e-6, 1e6},
        {".original_max_positions", of.original_max_positions, 1.0, 1073741824.0},
        {".beta_fast", of.beta_fast, 1e-3, 1e6},
        {".beta_slow", of.beta_slow, 1e-3, 1e6},
        {".attention_factor", of.attention_factor, 1e-3, 1e3},
    };
    for (const auto& [field, value, least, most] : numbers)
        if (auto fine = check_number(joined({name, field}), value, least, most); !fine)
            return fine;
    const auto mismatched = [&](std::string_view field, std::string_view what) {
        const std::string at = joined({name, field});
        return error{error_code::mismatched, at, joined({at, what})};
    };
    if (of.scaling == rope_config::kind::llama3 && !(of.high_freq_factor > of.low_freq_factor))
        return mismatched(".high_freq_factor", " must be above low_freq_factor");
    if (of.scaling == rope_config::kind::yarn && !(of.beta_fast > of.beta_slow && of.theta > 1.0))
        return mismatched(".beta_fast", " must be above beta_slow, and theta above 1");
    if (of.turning > head_dim / 2)
        return mismatched(".turning", " is more than the pairs of a head");
    const std::size_t factors = of.scaling == rope_config::kind::factors ? head_dim / 2 : 0;
    if (of.factors.size() != factors)
        return mismatched(".factors", joined({" has ", std::to_string(of.factors.size()), " numbers; ",
                                              std::to_string(factors), " are needed"}));
    for (const float one : of.factors)
        if (auto fine = check_number(joined({name, ".factors"}), static_cast<double>(one), 1e-6, 1e6); !fine)
            return fine;
    return {};
}

} // namespace detail

}} // namespace kvcache
