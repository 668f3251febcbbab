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

/// What a codec costs a model on a text, in windows that are run cold.
struct quality {
    double perplexity = 0.0;
    double divergence = 0.0; ///< KL of the logits from those of float32 pages, nats a token.
    double agreement = 0.0;  ///< Share of positions with the same likeliest token.
};

/// The logits of a window, by a cache of its own. (tokens, vocabulary)
template <class Codec>
[[nodiscard]] kvcache::matrix logits_of_window(const kvcache::transformer& model, kvcache::team& threads,
                                               const Codec& codec, std::span<const kvcache::token_id> window,
                                               std::uint32_t page_tokens) {
    const kvcache::page_shape shape = model.shape(page_tokens);
    const std::size_t pages = 2 * (window.size() / page_tokens + 2);
    const std::size_t exact =
        8 * kvcache::exact_page::bytes_for(shape) + 64 * 4 * kvcache::exact_page::bytes_for(shape);
    auto store = kvcache::make_cache(shape, {.bytes = pages * codec.open(shape).page_bytes() + exact}, codec);
    kvcache::pipeline<decltype(store), kvcache::transformer> through(store, model, threads);
    auto fed = through.feed(window, kvcache::logits_of::all);
    if (!fed)
        throw std::runtime_error(fed.error().message);
    return std::move(fed->logits);
}

/// Natural logarithms of the probabilities. (vocabulary)
[[nodiscard]] inline Eigen::ArrayXd log_probabilities(const kvcache::matrix& logits, Eigen::Index row) {
    const Eigen::ArrayXd x = logits.row(row).cast<double>().array();
    return x - x.maxCoeff() - std::log((x - x.maxCoeff()).exp().sum());
}

/// Adds up windows: `exact` are the logits of float32 pages, `coded` those of a codec.
class quality_sum {
public:
    void add(const kvcache::matrix& exact, const kvcache::matrix& coded, std::span<const kvcache::token_id> window) {
        for (Eigen::Index row = 0; row + 1 < exact.rows(); ++row) {
            const auto p = log_probabilities(exact, row), q = log_probabilities(coded, row);
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
