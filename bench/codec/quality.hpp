// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/any_codec.hpp>
#include <kvcache/kvcache.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <vector>

namespace bench {

/// The effect of a codec on a model's predictions of a text, in windows that each start with an empty cache.
struct quality {
    double perplexity = 0.0;
    double divergence = 0.0; ///< KL divergence from the predictions with float32 pages, in nats per token.
    double agreement = 0.0;  ///< Share of positions with the same most likely token.
};

/// The logits of a window, computed with a new cache. (tokens, vocabulary)
template <class Codec>
[[nodiscard]] kvcache::matrix logits_of_window(const kvcache::transformer& model, kvcache::thread_pool& threads,
                                               const Codec& codec, std::span<const kvcache::token_id> window,
                                               std::uint32_t page_tokens) {
    const kvcache::page_shape shape = model.shape(page_tokens);
    const std::size_t pages = 2 * (window.size() / page_tokens + 2);
    const std::size_t exact =
        8 * kvcache::codec::residual_page::bytes_for(shape) + 64 * 4 * kvcache::codec::residual_page::bytes_for(shape);
    auto store = kvcache::make_cache(
        {.shape = shape, .limit = {.bytes = pages * codec.open(shape).page_bytes() + exact}}, codec);
    kvcache::pipeline<decltype(store), kvcache::transformer> pipeline(store, model, threads);
    auto filled = pipeline.prefill(window, kvcache::logits_mode::all);
    if (!filled)
        throw std::runtime_error(filled.error().message);
    return std::move(filled->logits);
}

/// The natural logarithms of the softmax probabilities of a row. (vocabulary)
[[nodiscard]] inline Eigen::ArrayXd log_probabilities(const kvcache::matrix& logits, Eigen::Index row) {
    const Eigen::ArrayXd x = logits.row(row).cast<double>().array();
    return x - x.maxCoeff() - std::log((x - x.maxCoeff()).exp().sum());
}

/// Accumulates quality over windows: `exact` are the logits with float32 pages, `encoded` those with a codec's pages.
class quality_sum {
public:
    void add(const kvcache::matrix& exact, const kvcache::matrix& encoded, std::span<const kvcache::token_id> window) {
        for (Eigen::Index row = 0; row + 1 < exact.rows(); ++row) {
            const auto p = log_probabilities(exact, row), q = log_probabilities(encoded, row);
            Eigen::Index first = 0, second = 0;
            p.maxCoeff(&first), q.maxCoeff(&second);
            surprise_ -= q[kvcache::index_of(window[static_cast<std::size_t>(row) + 1])];
            divergence_ += (p.exp() * (p - q)).sum();
            agree_ += first == second;
            ++rows_;
        }
    }

    [[nodiscard]] quality mean() const {
        const double n = static_cast<double>(std::max<std::size_t>(rows_, 1));
        return {std::exp(surprise_ / n), divergence_ / n, static_cast<double>(agree_) / n};
    }

private:
    double surprise_ = 0.0, divergence_ = 0.0;
    std::size_t agree_ = 0, rows_ = 0;
};

} // namespace bench
