// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/kernel/math.hpp>
#include <kvcache/kernel/recurrence.hpp>
#include <kvcache/kernel/thread_pool.hpp>
#include <kvcache/model/activations.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/dense_mlp.hpp>
#include <kvcache/model/linear.hpp>
#include <kvcache/model/weights.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// An expert of a token, and its share of the token's output.
struct expert_share {
    std::uint32_t expert = 0;
    float share = 0.0F;

    friend bool operator==(const expert_share&, const expert_share&) = default;
};

/// Chooses the experts with the highest scores, of equal ones those with the lowest number, into `chosen`, in ascending
/// order of number. Shares are the softmax of the scores: of the chosen ones if `normalized`, else of all. Scores that
/// are NaN are never chosen before others. Requires: chosen.size() <= scores.size(). (experts) Cost: O(experts * used).
inline void choose_experts(std::span<const float> scores, bool normalized, std::span<expert_share> chosen) {
    std::size_t made = 0;
    for (expert_share& one : chosen) {
        std::size_t best = scores.size();
        for (std::size_t i = 0; i < scores.size(); ++i) {
            const auto same = [&](const expert_share& other) { return other.expert == i; };
            if (ranges::any_of(chosen.first(made), same))
                continue;
            if (best == scores.size() || scores[i] > scores[best] ||
                (scores[best] != scores[best] && scores[i] == scores[i]))
                best = i;
        }
        one = {static_cast<std::uint32_t>(best), scores[best]};
        ++made;
    }
    const float most = chosen.front().share;
    float all = 0.0F; // in ascending order of number
    ranges::sort(chosen, {}, &expert_share::expert);
    for (expert_share& one : chosen) {
        one.share = exp_one(one.share - most);
        all += one.share;
    }
    if (!normalized) {
        all = 0.0F;
        for (const float score : scores)
            all += exp_one(score - most);
    }
    for (expert_share& one : chosen)
        one.share /= all;
}

/// A mixture of experts over the rows of a batch (Shazeer et al. 2017). Each expert runs once a batch, over the rows
/// that chose it, and a row adds the outputs of its experts in ascending order of number: its bits do not depend on the
/// rows that it shares experts with.
class expert_mlp {
public:
    explicit expert_mlp(const model_config& config)
        : config_(config),
          scores_(std::max<std::size_t>(config.experts.count, 1)),
          gathered_(config.hidden_size),
          inner_(2 * std::max<std::size_t>(config.experts.size, 1)),
          made_(config.hidden_size),
          summed_(config.hidden_size),
          shared_(2 * std::max<std::size_t>(config.experts.shared, 1)),
          shares_(1) {}

    /// Ensures memory for `rows` rows. Allocates only if it grows.
    void make_room(std::size_t rows) {
        if (config_.experts.count == 0)
            return;
        for (activations* each : {&scores_, &gathered_, &inner_, &made_, &summed_, &shared_, &shares_})
            each->make_room(rows);
        if (chosen_.size() < rows * config_.experts.used)
            chosen_.resize(rows * config_.experts.used);
        rows_of_.reserve(rows * config_.experts.used);
    }

    /// Computes out = mixture(x) for the first `rows` rows; out may be x. Requires: room for them. (rows, hidden)
    void run(const block_weights& w, activations& x, std::size_t rows, activations& out, thread_pool& threads,
             int8_block_rows& scratch) {
        const std::size_t used = config_.experts.used, size = config_.experts.size;
        w.router.apply(x.in(rows), scores_.out(), threads, scratch);
        for (std::size_t row = 0; row < rows; ++row) {
            choose_experts(scores_.row(row), config_.experts.normalized, chosen_of(row));
            ranges::fill(summed_.row(row), 0.0F);
        }
        for (std::uint32_t expert = 0; expert < config_.experts.count; ++expert) {
            rows_of_.clear();
            for (std::size_t i = 0; i < rows * used; ++i)
                if (chosen_[i].expert == expert)
                    rows_of_.push_back({i / used, chosen_[i].share});
            if (rows_of_.empty())
                continue;
            const std::size_t n = rows_of_.size();
            for (std::size_t i = 0; i < n; ++i)
                ranges::copy(x.row(rows_of_[i].row), gathered_.row(i).begin());
            w.expert_gate_up[expert].apply(gathered_.in(n), inner_.out(), threads, scratch);
            for (std::size_t i = 0; i < n; ++i)
                gated(config_, inner_.row(i).first(size), inner_.row(i).subspan(size), inner_.row(i).first(size));
            w.expert_down[expert].apply(inner_.in(n), made_.out(), threads, scratch);
            for (std::size_t i = 0; i < n; ++i)
                add_scaled(summed_.row(rows_of_[i].row), rows_of_[i].share, made_.row(i));
        }
        if (config_.experts.shared != 0)
            add_shared(w, x, rows, threads, scratch);
        for (std::size_t row = 0; row < rows; ++row)
            ranges::copy(summed_.row(row), out.row(row).begin());
    }

private:
    struct use {
        std::size_t row = 0;
        float share = 0.0F;
    };

    // Adds the expert that all tokens use.
    void add_shared(const block_weights& w, const activations& x, std::size_t rows, thread_pool& threads,
                    int8_block_rows& scratch) {
        const std::size_t size = config_.experts.shared;
        if (config_.experts.scored_shared)
            w.shared_router.apply(x.in(rows), shares_.out(), threads, scratch);
        w.shared_gate_up.apply(x.in(rows), shared_.out(), threads, scratch);
        for (std::size_t row = 0; row < rows; ++row)
            gated(config_, shared_.row(row).first(size), shared_.row(row).subspan(size), shared_.row(row).first(size));
        w.shared_down.apply(shared_.in(rows), made_.out(), threads, scratch);
        for (std::size_t row = 0; row < rows; ++row)
            add_scaled(summed_.row(row), config_.experts.scored_shared ? sigmoid(shares_.row(row)[0]) : 1.0F,
                       made_.row(row));
    }

    [[nodiscard]] std::span<expert_share> chosen_of(std::size_t row) {
        return std::span(chosen_).subspan(row * config_.experts.used, config_.experts.used);
    }

    const model_config& config_;
    activations scores_;               // (rows, experts)
    activations gathered_;             // (rows of an expert, hidden)
    activations inner_;                // (rows of an expert, 2 expert size)
    activations made_;                 // (rows of an expert, hidden)
    activations summed_;               // (rows, hidden)
    activations shared_;               // (rows, 2 shared size)
    activations shares_;               // (rows, 1)
    std::vector<expert_share> chosen_; // (rows, experts used)
    std::vector<use> rows_of_;         // of an expert
};

}} // namespace kvcache
