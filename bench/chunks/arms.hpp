// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/kvcache.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace bench {

using tokens = std::vector<kvcache::token_id>;

/// The value, or its error as an exception: a measurement ends with the first fault.
template <class T>
[[nodiscard]] T must(kvcache::result<T> made) {
    if (!made)
        throw std::runtime_error(made.error().field + ": " + made.error().message);
    return std::move(*made);
}

/// What one strategy came to, against a prefill of everything.
struct chunk_row {
    std::string part, strategy;
    double ttft_ms = 0.0, full_ttft_ms = 0.0;
    double forward_tokens = 0.0, full_forward_tokens = 0.0; ///< Rows times layers that ran, over the layers.
    double recomputed_share = 0.0;                          ///< Of the tokens known from elsewhere.
    double shared_mib = 0.0;                                ///< Keys and values that were reused where they lay.
    double kl = 0.0, kl_none = 0.0;                         ///< Nats a token of the exact answer.
    double argmax_agreement = 0.0, accuracy = 0.0, full_accuracy = 0.0, none_accuracy = 0.0;
    double p_random = 1.0; ///< Of a difference in KL to random as large as this, by chance.
    std::size_t questions = 0;
};

/// A cache with one recompute policy, and pipelines over it.
template <class Policy>
struct arm {
    using cache = kvcache::cache<kvcache::chunk, Policy>;
    using pipeline = kvcache::chunk_pipeline<cache, kvcache::transformer>;

    arm(const kvcache::transformer& model, kvcache::team& threads, Policy policy, std::size_t rows, std::size_t least,
        std::uint32_t page, typename pipeline::options how)
        : store(kvcache::make_cache(
              model.shape(page), {.bytes = (rows / page + 1) * kvcache::plain{}.open(model.shape(page)).page_bytes()},
              kvcache::chunk{.least = least}, std::move(policy))),
          through(store, model, threads, std::move(how)) {}

    [[nodiscard]] double mib(std::size_t rows) const {
        return static_cast<double>(rows) * static_cast<double>(store.codec().page_bytes()) /
               static_cast<double>(store.shape().tokens) / (1 << 20);
    }

    cache store;
    pipeline through;
};

} // namespace bench
