// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/core/tensor.hpp>
#include <kvcache/session/chunk_pipeline.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <span>

namespace kvcache::inline KVCACHE_ABI {

/// What a mode of reuse did to the logits of a prompt's last token and of all tokens of its answer.
struct verification {
    bool same_bits = false;        ///< They are, bit for bit, those of a prefill of everything.
    double kl = 0.0;               ///< Mean Kullback-Leibler divergence from those, in nats a token.
    double argmax_agreement = 0.0; ///< The share of tokens whose likeliest successor is the same.
    std::size_t tokens = 0;        ///< That were compared.
    reuse_counts counts = {};      ///< What was reused: a comparison in which nothing was says nothing.
};

/// KL(p || q) of two rows of logits, in nats. Cost: O(vocabulary).
[[nodiscard]] inline double divergence(std::span<const float> p, std::span<const float> q) {
    expects(p.size() == q.size() && !p.empty(), "distributions over one vocabulary are compared");
    const auto log_total = [](std::span<const float> row) {
        const auto top = static_cast<double>(*std::ranges::max_element(row));
        double sum = 0.0;
        for (const float x : row)
            sum += std::exp(static_cast<double>(x) - top);
        return top + std::log(sum);
    };
    const double of_p = log_total(p), of_q = log_total(q);
    double sum = 0.0;
    for (std::size_t i = 0; i < p.size(); ++i) {
        const double log_p = static_cast<double>(p[i]) - of_p;
        sum += std::exp(log_p) * (log_p - (static_cast<double>(q[i]) - of_q));
    }
    return std::max(sum, 0.0);
}

/// Runs a prompt and an answer with reuse, then again without any, and compares. The prompt is known afterwards.
/// Errors: those of chunk_pipeline::feed. Cost: a prefill more than the answer takes.
template <class Cache, class Model>
[[nodiscard]] result<verification> verify(chunk_pipeline<Cache, Model>& through, std::span<const token_id> prompt,
                                          std::span<const token_id> answer, reuse_mode mode) {
    const auto run = [&](reuse_mode how, reuse_counts& counts) -> result<matrix> {
        auto fed = through.feed(prompt, how);
        if (!fed)
            return fed.error();
        counts = fed->counts;
        if (answer.empty())
            return std::move(fed->logits);
        auto behind = through.exact().extend(fed->sequence, answer, logits_of::all);
        if (!behind)
            return behind.error();
        matrix all(behind->rows() + 1, behind->cols());
        all << fed->logits, *behind;
        return all;
    };
    verification made{.tokens = answer.size() + 1};
    reuse_counts nothing;
    const auto reused = run(mode, made.counts);
    if (!reused)
        return reused.error();
    const auto truth = run(reuse_mode::baseline, nothing);
    if (!truth)
        return truth.error();
    made.same_bits =
        std::memcmp(reused->data(), truth->data(), static_cast<std::size_t>(truth->size()) * sizeof(float)) == 0;
    for (Eigen::Index i = 0; i < truth->rows(); ++i) {
        const auto row = static_cast<std::size_t>(i);
        const auto p = row_of(*truth, row), q = row_of(*reused, row);
        made.kl += divergence(p, q);
        const bool agree = std::ranges::max_element(p) - p.begin() == std::ranges::max_element(q) - q.begin();
        made.argmax_agreement += agree ? 1.0 : 0.0;
    }
    made.kl /= static_cast<double>(made.tokens);
    made.argmax_agreement /= static_cast<double>(made.tokens);
    return made;
}

} // namespace kvcache
