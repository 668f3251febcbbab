// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/kernel/math.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A token and the natural logarithm of its probability.
struct token_score {
    token_id token = {};
    float log_probability = 0.0f;

    friend bool operator==(const token_score&, const token_score&) = default;
};

namespace detail {

/// Returns the natural logarithm of a positive normal number, within a few units in the last place. The bits do not
/// depend on the C library.
[[nodiscard]] inline double logarithm(double x) {
    int exponent = 0;
    double m = std::frexp(x, &exponent); // exact; [0.5, 1)
    if (m < 0.70710678118654752) {
        m += m;
        --exponent;
    }
    // 2 atanh(s) as a series; |s| <= 0.1716, so the first omitted term is under 1e-18.
    const double s = (m - 1.0) / (m + 1.0), square = s * s;
    double series = 1.0 / 23.0;
    for (int odd = 21; odd >= 1; odd -= 2)
        series = std::fma(series, square, 1.0 / odd);
    return std::fma(static_cast<double>(exponent), 0.69314718055994531, (s + s) * series);
}

} // namespace detail

/// The log-probabilities of the model, before any bias, penalty or temperature. Requires: the logits outlive it.
class log_probabilities {
public:
    /// Cost: O(vocabulary), one exponential per token.
    explicit log_probabilities(std::span<const float> logits) : logits_(logits) {
        expects(!logits.empty(), "probabilities are those of some tokens");
        const float top = *std::max_element(logits.begin(), logits.end());
        const f32x16 largest = f32x16::broadcast(top);
        double total = 0.0;
        alignas(64) float lanes[16];
        detail::by_sixteen(logits.size(), [&](std::size_t i, std::size_t n) {
            exp(f32x16::load_up_to(logits.data() + i, n) - largest).store(lanes);
            for (std::size_t lane = 0; lane < n; ++lane)
                total += static_cast<double>(lanes[lane]);
        });
        log_total_ = static_cast<double>(top) + detail::logarithm(total);
    }

    [[nodiscard]] float of(token_id token) const { return static_cast<float>(precise(token)); }
    /// Like of(), in double precision, for sums.
    [[nodiscard]] double precise(token_id token) const {
        expects(static_cast<std::size_t>(index_of(token)) < logits_.size(), "a token has a logit");
        return static_cast<double>(logits_[static_cast<std::size_t>(index_of(token))]) - log_total_;
    }

    /// Returns the `n` most likely tokens, in descending order; ties are ordered by id.
    [[nodiscard]] std::vector<token_score> top(std::size_t n) const {
        std::vector<std::int32_t> ids(logits_.size());
        std::iota(ids.begin(), ids.end(), 0);
        const auto end = ids.begin() + static_cast<std::ptrdiff_t>(std::min(n, ids.size()));
        std::partial_sort(ids.begin(), end, ids.end(), [&](std::int32_t a, std::int32_t b) {
            const float x = logits_[static_cast<std::size_t>(a)], y = logits_[static_cast<std::size_t>(b)];
            return x != y ? x > y : a < b;
        });
        std::vector<token_score> made;
        for (auto at = ids.begin(); at != end; ++at)
            made.push_back({token_id{*at}, of(token_id{*at})});
        return made;
    }

private:
    std::span<const float> logits_;
    double log_total_ = 0.0;
};

}} // namespace kvcache
