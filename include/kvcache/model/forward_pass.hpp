// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/tensor.hpp>
#include <kvcache/kernel/math.hpp>
#include <kvcache/kernel/team.hpp>
#include <kvcache/model/attention_jobs.hpp>
#include <kvcache/model/batch_part.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/weights.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcache {

/// What a pass reads of its model.
struct model_parts {
    const model_config& config;
    const model_weights& weights;
    attention_shape attention;
};

/// One forward pass over a ragged batch of sequences: embed, then layer by layer, then logits. Rows of strangers go
/// through the products together and never meet in a sum. (rows, hidden)
template <class Lease>
class forward_pass {
public:
    forward_pass(const model_parts& model, std::span<const batch_part<Lease>> batch, team& threads)
        : model_(model),
          batch_(batch.begin(), batch.end()),
          threads_(threads),
          hidden_(model.config.hidden_size),
          q_(model.config.heads * model.config.head_dim),
          kv_(model.config.kv_heads * model.config.head_dim) {
        for (const auto& part : batch_)
            rows_ += part.tokens.size();
        const std::size_t inner = model.config.intermediate_size;
        x_.resize(rows_ * hidden_);
        normed_.resize(rows_ * hidden_);
        qkv_.resize(rows_ * (q_ + 2 * kv_));
        attended_.resize(rows_ * q_);
        inner_.resize(rows_ * 2 * inner);
        rotations_.resize(rows_ * model.config.head_dim);
        embed();
        attention_.deal(model.attention, batch_,
                        {.queries = qkv_.data(),
                         .rotations = rotations_.data(),
                         .out = attended_.data(),
                         .stride = q_ + 2 * kv_,
                         .out_stride = q_},
                        threads);
    }

    /// Runs one block: writes its keys and values into the leases, and attends to them and all before.
    void forward(layer_id layer) {
        const block_weights& w = model_.weights.layers[index_of(layer)];
        norm(x_, w.attention_norm);
        w.qkv.apply(view(normed_, hidden_), view_out(qkv_, q_ + 2 * kv_), threads_);
        place_keys(layer, w);
        attention_.attend(layer, threads_);
        w.output.apply(view(attended_, q_), view_out(normed_, hidden_), threads_);
        add_to(x_, normed_);

        norm(x_, w.mlp_norm);
        const std::size_t inner = model_.config.intermediate_size;
        w.gate_up.apply(view(normed_, hidden_), view_out(inner_, 2 * inner), threads_);
        for_rows(inner, [&](std::size_t row) {
            const std::span gate(inner_.data() + row * 2 * inner, inner);
            gated_silu(gate, {gate.data() + inner, inner}, gate);
        });
        w.down.apply({inner_.data(), rows_, 2 * inner}, view_out(normed_, hidden_), threads_);
        add_to(x_, normed_);
    }

    /// The logits of the rows that want them, in batch order. (wanted rows, vocabulary)
    [[nodiscard]] matrix logits() {
        std::vector<std::size_t> wanted;
        std::size_t row = 0;
        for (const auto& part : batch_) {
            const std::size_t n = part.tokens.size();
            const std::size_t skipped = part.wanted == logits_of::all    ? 0
                                        : part.wanted == logits_of::last ? n - std::min<std::size_t>(n, 1)
                                                                         : n;
            for (std::size_t i = skipped; i < n; ++i)
                wanted.push_back(row + i);
            row += n;
        }
        for (std::size_t i = 0; i < wanted.size(); ++i)
            rms_norm(of_row(x_, wanted[i], hidden_), model_.weights.final_norm, model_.config.rms_norm_eps,
                     of_row(normed_, i, hidden_));
        matrix out(static_cast<Eigen::Index>(wanted.size()), static_cast<Eigen::Index>(model_.config.vocabulary));
        if (!wanted.empty())
            model_.weights.head.apply({normed_.data(), wanted.size(), hidden_}, {out.data(), model_.config.vocabulary},
                                      threads_);
        return out;
    }

private:
    [[nodiscard]] static std::span<float> of_row(aligned_vector<float>& m, std::size_t row, std::size_t columns) {
        return {m.data() + row * columns, columns};
    }
    [[nodiscard]] rows_in view(const aligned_vector<float>& m, std::size_t columns) const {
        return {m.data(), rows_, columns};
    }
    [[nodiscard]] static rows_out view_out(aligned_vector<float>& m, std::size_t columns) {
        return {m.data(), columns};
    }

    // For loops over numbers that are not products: what one costs, in multiply-adds.
    static constexpr std::size_t operations = 8;

    template <class Body>
    void for_rows(std::size_t columns, Body body) {
        threads_.share(rows_, rows_ * columns * operations, [&](std::size_t begin, std::size_t end) {
            for (std::size_t row = begin; row < end; ++row)
                body(row);
        });
    }

    void embed() {
        const linear& table = model_.config.tied_head ? model_.weights.head : model_.weights.embedding;
        std::size_t row = 0;
        for (const auto& part : batch_)
            for (std::size_t i = 0; i < part.tokens.size(); ++i, ++row) {
                const auto token = static_cast<std::size_t>(index_of(part.tokens[i]));
                expects(token < model_.config.vocabulary, "a token is in the vocabulary");
                table.row(token, of_row(x_, row, hidden_));
                model_.attention.rotation->fill(static_cast<std::int64_t>(part.position(i)),
                                                of_row(rotations_, row, model_.config.head_dim));
            }
    }

    void norm(aligned_vector<float>& from, std::span<const float> weight) {
        for_rows(hidden_, [&](std::size_t row) {
            rms_norm(of_row(from, row, hidden_), weight, model_.config.rms_norm_eps, of_row(normed_, row, hidden_));
        });
    }

    // Normalises heads where the model does, rotates the keys, and writes keys and values into the pages.
    void place_keys(layer_id layer, const block_weights& w) {
        const std::size_t dim = model_.config.head_dim;
        std::size_t before = 0;
        for (const auto& part : batch_) {
            threads_.share(part.tokens.size(), part.tokens.size() * (q_ + 2 * kv_) * operations,
                           [&](std::size_t begin, std::size_t end) {
                               for (std::size_t i = begin; i < end; ++i) {
                                   const auto row = of_row(qkv_, before + i, q_ + 2 * kv_);
                                   const auto heads = row.first(q_), keys = row.subspan(q_, kv_),
                                              values = row.subspan(q_ + kv_);
                                   if (model_.config.qk_norm) {
                                       norm_heads(heads, w.q_norm);
                                       norm_heads(keys, w.k_norm);
                                   }
                                   const auto rotation = of_row(rotations_, before + i, dim);
                                   for (std::size_t at = 0; at < kv_; at += dim)
                                       rotate_head(keys.subspan(at, dim), rotation, keys.subspan(at, dim));
                                   part.lease->write(layer, part.row + i, keys, values);
                               }
                           });
            before += part.tokens.size();
        }
    }

    void norm_heads(std::span<float> heads, std::span<const float> weight) const {
        for (std::size_t at = 0; at < heads.size(); at += weight.size()) {
            const auto head = heads.subspan(at, weight.size());
            rms_norm(head, weight, model_.config.rms_norm_eps, head);
        }
    }

    model_parts model_;
    std::vector<batch_part<Lease>> batch_;
    team& threads_;
    std::size_t rows_ = 0;
    std::size_t hidden_;
    std::size_t q_;
    std::size_t kv_;
    attention_jobs<Lease> attention_;
    aligned_vector<float> x_;         // (rows, hidden): the residual stream
    aligned_vector<float> normed_;    // (rows, hidden)
    aligned_vector<float> qkv_;       // (rows, q + 2 kv)
    aligned_vector<float> attended_;  // (rows, q)
    aligned_vector<float> inner_;     // (rows, 2 intermediate)
    aligned_vector<float> rotations_; // (rows, 2, head_dim / 2)
};

} // namespace kvcache
