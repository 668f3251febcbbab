// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/core/tensor.hpp>
#include <kvcache/session/chunk_pipeline.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Differences that reuse makes to the logits of the last prompt token and of all tokens of the answer.
struct reuse_quality {
    bool same_bits = false;        ///< All logits equal those of a full prefill, bit for bit.
    double kl = 0.0;               ///< Mean KL divergence from a full prefill, in nats per token.
    double argmax_agreement = 0.0; ///< Fraction of tokens with the same most likely successor.
    std::size_t tokens = 0;        ///< Number of tokens compared.
    reuse_counts counts = {};      ///< Reuse of the prompt; without any, the comparison is meaningless.
};

/// Returns KL(p || q) of two rows of logits, in nats. Cost: O(vocabulary).
[[nodiscard]] inline double divergence(std::span<const float> p, std::span<const float> q) {
    expects(p.size() == q.size() && !p.empty(), "distributions over one vocabulary are compared");
    const auto log_total = [](std::span<const float> row) {
        const auto top = static_cast<double>(*ranges::max_element(row));
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

/// Runs a prompt and its answer with reuse, then without, and compares the logits. The prompt is cached afterwards.
/// Errors: those of chunk_pipeline::prefill. Cost: one prefill more than the answer alone.
template <class Cache, class Model>
[[nodiscard]] result<reuse_quality> verify(chunk_pipeline<Cache, Model>& pipeline, std::span<const token_id> prompt,
                                           std::span<const token_id> answer, reuse_mode mode) {
    const auto run = [&](reuse_mode how, reuse_counts& counts) -> result<matrix> {
        auto filled = pipeline.prefill(prompt, how);
        if (!filled)
            return filled.error();
        counts = filled->counts;
        if (answer.empty())
            return std::move(filled->logits);
        auto behind = pipeline.exact().extend(filled->sequence, answer, logits_mode::all);
        if (!behind)
            return behind.error();
        matrix all(behind->rows() + 1, behind->cols());
        all << filled->logits, *behind;
        return all;
    };
    reuse_quality made{.tokens = answer.size() + 1};
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
        const bool agree = ranges::max_element(p) - p.begin() == ranges::max_element(q) - q.begin();
        made.argmax_agreement += agree ? 1.0 : 0.0;
    }
    made.kl /= static_cast<double>(made.tokens);
    made.argmax_agreement /= static_cast<double>(made.tokens);
    return made;
}

}} // namespace kvcache
