// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/kernel/math.hpp>
#include <kvcache/kernel/thread_pool.hpp>
#include <kvcache/model/activations.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/dense_mlp.hpp>
#include <kvcache/model/expert_mlp.hpp>
#include <kvcache/model/host_attention.hpp>
#include <kvcache/model/model_parts.hpp>
#include <kvcache/model/per_layer_input.hpp>
#include <kvcache/model/projected_heads.hpp>
#include <kvcache/model/recurrent_mixer.hpp>
#include <kvcache/model/row_rotations.hpp>
#include <kvcache/model/weights.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Attention that can fail and reports a status.
template <class Attention>
concept fallible_attention = requires(const Attention attention) {
    { attention.status() } -> std::same_as<result<void>>;
};

/// Forward passes over ragged batches of sequences: begin, then layer by layer, then logits. Rows of different
/// sequences share the GEMMs and never meet in a sum. A pass can begin again and reuses its memory: a batch of no more
/// rows and slices than before allocates nothing. `Attention` writes rows into the pages and computes attention.
template <class Lease, class Attention = host_attention<Lease>>
class forward_pass {
public:
    /// Requires: the model and the threads outlive it.
    forward_pass(const model_parts& model, thread_pool& threads, Attention attention = {})
        : model_(model),
          threads_(threads),
          at_(projected_heads::widest(model.config)),
          ones_(model.config.value_norm ? at_.dim : 0, 1.0F),
          attention_(std::move(attention)),
          x_(model.config.hidden_size),
          normed_(model.config.hidden_size),
          qkv_(at_.keys + 2 * at_.kv),
          attended_(at_.q),
          mlp_(model.config),
          experts_(model.config),
          mixer_(model.config),
          own_input_(model.config),
          rotations_(model) {}

    /// Embeds the tokens of a batch. Requires: the memory that the slices point to stays unchanged until the logits are
    /// computed.
    void begin(std::span<const batch_slice<Lease>> batch) {
        batch_.assign(batch.begin(), batch.end());
        rows_.clear();
        wanted_.clear();
        recurrent_.clear();
        for (std::size_t p = 0; p < batch_.size(); ++p) {
            recurrent_.push_back({rows_.size(), batch_[p].tokens.size(), batch_[p].states});
            for (std::size_t i = 0; i < batch_[p].tokens.size(); ++i) {
                if (i + batch_[p].wanted_rows() >= batch_[p].tokens.size())
                    wanted_.push_back(rows_.size());
                rows_.push_back({p, i});
            }
        }
        live_ = rows_.size();
        const auto make_room = [&](auto&... each) { (each.make_room(rows_.size()), ...); };
        make_room(x_, normed_, qkv_, attended_, mlp_, experts_, mixer_, own_input_, rotations_);
        kinds_.clear();
        for (std::size_t kind = 0; kind < model_.kinds.size(); ++kind) {
            kinds_.push_back(model_.kinds[kind]);
            if constexpr (grouped_lease<Lease>)
                kinds_.back().shape.sinks = kinds_.back().group_sinks;
            kinds_.back().rows = {.data = qkv_.row(0).data(),
                                  .rotations = rotations_.data(kind),
                                  .out = attended_.row(0).data(),
                                  .stride = qkv_.stride(),
                                  .out_stride = attended_.stride()};
        }
        embed();
        attention_.plan(kinds_, batch_, threads_);
    }

    /// Computes queries, keys and values of one block without storing them. Afterwards no other block can run.
    void project(layer_id layer) {
        const block_weights& w = model_.weights.layers[index_of(layer)];
        const attention_shape& shape = kinds_[place_of(layer).kind].shape;
        at_ = projected_heads::of(model_.config, shape.head_dim, shape.kv_heads);
        const float eps = model_.config.rms_norm_eps;
        w.qkv.apply(entering(w).in(rows_.size()), qkv_.out(), threads_, scratch_);
        if (!w.q_norm.empty())
            for_rows(qkv_.columns(), [&](std::size_t row) {
                norm_heads(qkv_.row(row).first(at_.q), w.q_norm, eps);
                if (w.k_norm.empty()) // it reads those of another block
                    return;
                if (w.qkv.outputs() == at_.keys + at_.kv) // keys that are the values too
                    ranges::copy(keys(row), values(row).begin());
                norm_heads(keys(row), w.k_norm, eps);
                if (!ones_.empty())
                    norm_heads(values(row), std::span(ones_).first(at_.dim), eps);
            });
    }
    /// Dimensions of a head of the block that `project` computed.
    [[nodiscard]] std::size_t head_dim() const noexcept { return at_.dim; }

    /// Keys and values that `project` computed for a row of the batch, before RoPE. (kv_heads, head_dim)
    [[nodiscard]] std::span<float> keys(std::size_t row) { return qkv_.row(row).subspan(at_.keys, at_.kv); }
    [[nodiscard]] std::span<float> values(std::size_t row) { return qkv_.row(row).subspan(at_.keys + at_.kv, at_.kv); }

    /// Runs one block: writes its keys and values into the leases, and attends to them and all earlier ones; or
    /// advances its states. Keys and values of a row that its lease already holds are not written; the row only
    /// attends.
    void forward(layer_id layer) {
        const block_weights& w = model_.weights.layers[index_of(layer)];
        const attended_layer at = place_of(layer);
        if (at.recurrent)
            mixer_.run({w, index_of(at.layer)}, entering(w), recurrent_, normed_, threads_, scratch_);
        else
            attend(layer, at);
        // A row with an input of its own stays where that is.
        if (index_of(layer) + 1 == model_.config.layers && !own_input_.any())
            keep_wanted(at.recurrent ? normed_ : attended_);
        if (live_ == 0)
            return;
        if (!at.recurrent)
            w.output.apply(attended_.in(live_), normed_.out(), threads_, scratch_);
        for_rows(2 * x_.columns(), [&](std::size_t row) {
            add(row, w.attention_output_norm);
            if (!w.mlp_norm.empty())
                norm(x_.row(row), w.mlp_norm, normed_.row(row));
        });
        activations& in = w.mlp_norm.empty() ? x_ : normed_;
        if (!w.expert_down.empty())
            experts_.run(w, in, live_, normed_, threads_, scratch_);
        else
            mlp_.run(w, in, live_, normed_, threads_, scratch_);
        for_rows(x_.columns(), [&](std::size_t row) { add(row, w.mlp_output_norm); });
        if (own_input_.any()) {
            own_input_.run(w, index_of(layer), x_.in(live_), normed_, threads_, scratch_);
            for_rows(x_.columns(), [&](std::size_t row) { add_to(x_.row(row), normed_.row(row)); });
        }
        if (!w.scale.empty())
            for_rows(x_.columns(), [&](std::size_t row) { scale(x_.row(row), w.scale.front(), x_.row(row)); });
    }

    /// Returns whether the current batch has succeeded so far, where attention may fail. On an error its rows must not
    /// be used. Errors: those of the device.
    [[nodiscard]] result<void> status() const requires fallible_attention<Attention> { return attention_.status(); }

    /// Where a layer's keys and values are: in a cache without layer groups all layers are in the pages.
    [[nodiscard]] attended_layer place_of(layer_id layer) const {
        attended_layer at = model_.layers[index_of(layer)];
        if constexpr (!grouped_lease<Lease>)
            at.layer = layer;
        return at;
    }

    /// Writes the logits of the rows that need them, in batch order. (rows that need them, vocabulary)
    void logits(std::span<float> out) {
        const std::size_t wanted_rows = wanted_.size();
        expects(out.size() == wanted_rows * model_.config.vocabulary, "logits have room for the rows that want them");
        if (live_ != wanted_rows)
            keep_wanted(normed_);
        for (std::size_t row = 0; row < wanted_rows; ++row)
            norm(x_.row(row), model_.weights.final_norm, normed_.row(row));
        const model_config& config = model_.config;
        model_.weights.head.apply(normed_.in(wanted_rows), {out.data(), config.vocabulary}, threads_, scratch_);
        if (config.logit_scale != 1.0F || config.logit_cap != 0.0F)
            threads_.parallel_for(out.size(), out.size() * operations, [&](std::size_t begin, std::size_t end) {
                const auto some = out.subspan(begin, end - begin);
                scale(some, config.logit_scale, some);
                if (config.logit_cap != 0.0F)
                    soft_cap(some, config.logit_cap);
            });
    }

private:
    // Origin of a row of the batch.
    struct origin {
        std::size_t part = 0;
        std::size_t row = 0;
    };

    // Approximate cost of an element outside the GEMMs, in multiply-adds.
    static constexpr std::size_t operations = 4;

    template <class Body>
    void for_rows(std::size_t columns, Body body) {
        threads_.parallel_for(live_, live_ * columns * operations, [&](std::size_t begin, std::size_t end) {
            for (std::size_t row = begin; row < end; ++row)
                body(row);
        });
    }

    void embed() {
        const linear& table = model_.config.tied_head ? model_.weights.head : model_.weights.embedding;
        for (const origin& from : rows_)
            expects(static_cast<std::size_t>(index_of(token(from))) < model_.config.vocabulary,
                    "a token is in the vocabulary");
        for_rows(8 * x_.columns(), [&](std::size_t row) {
            const origin& from = rows_[row];
            table.row(static_cast<std::size_t>(index_of(token(from))), x_.row(row));
            if (model_.config.embedding_scale != 1.0F)
                scale(x_.row(row), model_.config.embedding_scale, x_.row(row));
            rotations_.fill(row, batch_[from.part].position(from.row));
        });
        if (own_input_.any())
            own_input_.embed(
                model_.weights, x_, rows_.size(), [&](std::size_t row) { return token(rows_[row]); }, threads_,
                scratch_);
    }

    // What enters attention: the stream, normalized where the block does so.
    [[nodiscard]] activations& entering(const block_weights& w) {
        if (w.attention_norm.empty())
            return x_;
        for_rows(x_.columns(), [&](std::size_t row) { norm(x_.row(row), w.attention_norm, normed_.row(row)); });
        return normed_;
    }

    // Moves the rows that want logits to the front: nothing reads the others once the last layer has attended.
    void keep_wanted(activations& also) {
        for (live_ = 0; live_ < wanted_.size(); ++live_)
            for (activations* const each : {&x_, &also})
                if (wanted_[live_] != live_)
                    ranges::copy(each->row(wanted_[live_]), each->row(live_).begin());
    }

    void attend(layer_id layer, const attended_layer& at) {
        project(layer);
        if (at.writes)
            for_rows(qkv_.columns(), [&](std::size_t row) { place(at, row); });
        attention_.run(at, threads_);
        if (model_.config.gated_attention)
            for_rows(4 * at_.q, [&](std::size_t row) {
                gate_by_sigmoid(qkv_.row(row).subspan(at_.q, at_.q), attended_.row(row));
            });
    }

    void norm(std::span<const float> from, std::span<const float> weight, std::span<float> to) const {
        rms_norm(from, weight, model_.config.rms_norm_eps, to);
    }

    // Adds the output of attention or MLP to the stream, normalized where the block does so.
    void add(std::size_t row, std::span<const float> output_norm) {
        const auto output = normed_.row(row);
        if (!output_norm.empty())
            norm(output, output_norm, output);
        if (model_.config.residual_scale != 1.0F)
            scale(output, model_.config.residual_scale, output);
        add_to(x_.row(row), output);
    }

    // Applies RoPE to the keys, and writes keys and values into the pages.
    void place(const attended_layer& at, std::size_t row) {
        const auto& part = batch_[rows_[row].part];
        const std::size_t to = part.row_of(rows_[row].row);
        if (part.lease->opened().keeps(to))
            return;
        for (std::size_t head = 0; rotations_.has(at.kind) && head < at_.kv; head += at_.dim)
            rotate_head(keys(row).subspan(head, at_.dim), rotations_.of(at.kind, row),
                        keys(row).subspan(head, at_.dim));
        attention_.write(*part.lease, to, row, at, keys(row), values(row));
    }

    [[nodiscard]] token_id token(const origin& from) const { return batch_[from.part].tokens[from.row]; }

    model_parts model_;
    thread_pool& threads_;
    projected_heads at_;      // of the block that was projected last
    std::vector<float> ones_; // (head_dim), where values are normalized without weights
    std::vector<batch_slice<Lease>> batch_;
    std::vector<origin> rows_;
    std::vector<std::size_t> wanted_; // of rows_, those that want logits
    std::size_t live_ = 0;            // rows that still count
    Attention attention_;
    activations x_;        // (rows, hidden): the residual stream
    activations normed_;   // (rows, hidden)
    activations qkv_;      // (rows, q + gates + 2 kv)
    activations attended_; // (rows, q)
    dense_mlp mlp_;
    expert_mlp experts_;
    recurrent_mixer mixer_;
    per_layer_input own_input_;
    std::vector<recurrent_rows> recurrent_;
    int8_block_rows scratch_; // (rows, GEMM inputs): quantized rows
    row_rotations rotations_;
    std::vector<attention_kind> kinds_;
};

}} // namespace kvcache
