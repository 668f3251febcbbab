// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/kvcache.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "../support/must.hpp"

namespace bench {

using tokens = std::vector<kvcache::token_id>;

/// The result of one strategy, compared with a full prefill.
struct chunk_row {
    std::string part, strategy, codec = "f32";
    double ttft_ms = 0.0, full_ttft_ms = 0.0;
    double forward_tokens = 0.0, full_forward_tokens = 0.0; ///< Computed layer rows over the number of layers.
    double recomputed_share = 0.0;                          ///< Recomputed share of the reused tokens.
    double shared_mib = 0.0;                                ///< Keys and values reused in place, without a copy.
    double kl = 0.0, kl_none = 0.0;                         ///< Nats per token of the exact answer.
    double argmax_agreement = 0.0, accuracy = 0.0, full_accuracy = 0.0, none_accuracy = 0.0;
    double p_random = 1.0; ///< p-value of the KL difference from the random strategy.
    std::size_t questions = 0;
};

/// A cache with one recompute policy and one codec, and a pipeline over it.
template <class Policy, class Codec = kvcache::codec::f32>
struct arm {
    using cache = kvcache::cache<kvcache::index::chunk, Policy, Codec>;
    using pipeline_type = kvcache::chunk_pipeline<cache, kvcache::transformer>;

    arm(const kvcache::transformer& model, kvcache::thread_pool& threads, Policy policy, std::size_t rows,
        std::size_t least, std::uint32_t page, typename pipeline_type::options how, Codec codec = {})
        : store(kvcache::make_cache(
              {.shape = model.shape(page),
               .limit = {.bytes = (rows / page + 1) * kvcache::codec::f32{}.open(model.shape(page)).page_bytes()}},
              kvcache::index::chunk{.least = least}, std::move(policy), std::move(codec))),
          runner(store, model, threads, std::move(how)) {}

    [[nodiscard]] double mib(std::size_t rows) const {
        return static_cast<double>(rows) * static_cast<double>(store.codec().page_bytes()) /
               static_cast<double>(store.shape().tokens) / (1 << 20);
    }

    cache store;
    pipeline_type runner;
};

} // namespace bench
