// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/kernel/block_int8_gemm.hpp>
#include <kvcache/kernel/math.hpp>
#include <kvcache/kernel/thread_pool.hpp>
#include <kvcache/model/activations.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/dense_mlp.hpp>
#include <kvcache/model/weights.hpp>

#include <cmath>
#include <cstddef>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The inputs that the layers of Gemma 4 have besides the stream, for each row of a batch:
///
///     in[layer] = (norm(projection(x)[layer] / sqrt(hidden)) + embedding[token][layer] * sqrt(size)) / sqrt(2)
///     x += norm(output(gate(gate_weights(x)) * in[layer]))          after the layer's MLP
///
/// with x the embedded token, and norms of each layer's numbers alone.
class per_layer_input {
public:
    explicit per_layer_input(const model_config& config)
        : config_(config),
          size_(config.per_layer_size),
          inputs_(config.layers * size_),
          given_(inputs_.columns()),
          one_(size_) {}

    /// Whether the model has such inputs.
    [[nodiscard]] bool any() const noexcept { return size_ != 0; }

    /// Ensures memory for `rows` rows. Allocates only if it grows.
    void make_room(std::size_t rows) {
        for (activations* each : {&inputs_, &given_, &one_})
            each->make_room(any() ? rows : 0);
    }

    /// Computes the inputs of all layers. `x`: the embedded tokens, whose numbers `token(row)` gives. Requires: room
    /// for the rows.
    template <class Token>
    void embed(const model_weights& weights, const activations& x, std::size_t rows, const Token& token,
               thread_pool& threads, int8_block_rows& scratch) {
        weights.per_layer_projection.apply(x.in(rows), inputs_.out(), threads, scratch);
        const float by_hidden = 1.0F / std::sqrt(static_cast<float>(config_.hidden_size));
        const float by_size = std::sqrt(static_cast<float>(size_)), half = std::sqrt(0.5F);
        threads.parallel_for(rows, rows * inputs_.columns() * 8, [&](std::size_t begin, std::size_t end) {
            for (std::size_t row = begin; row < end; ++row) {
                weights.per_layer_embedding.row(static_cast<std::size_t>(index_of(token(row))), given_.row(row));
                for (std::size_t layer = 0; layer < config_.layers; ++layer) {
                    const auto in = inputs_.row(row).subspan(layer * size_, size_);
                    const auto more = given_.row(row).subspan(layer * size_, size_);
                    scale(in, by_hidden, in);
                    rms_norm(in, weights.per_layer_norm, config_.rms_norm_eps, in);
                    scale(more, by_size, more);
                    add_to(in, more);
                    scale(in, half, in);
                }
            }
        });
    }

    /// Computes out = norm(output(gate(gate_weights(x)) * in[layer])). (rows, hidden)
    void run(const block_weights& w, std::size_t layer, const rows_in& x, activations& out, thread_pool& threads,
             int8_block_rows& scratch) {
        const std::size_t rows = x.rows;
        w.per_layer_gate.apply(x, one_.out(), threads, scratch);
        threads.parallel_for(rows, rows * size_ * 16, [&](std::size_t begin, std::size_t end) {
            for (std::size_t row = begin; row < end; ++row)
                gated(config_, one_.row(row), inputs_.row(row).subspan(layer * size_, size_), one_.row(row));
        });
        w.per_layer_output.apply(one_.in(rows), out.out(), threads, scratch);
        threads.parallel_for(rows, rows * out.columns() * 4, [&](std::size_t begin, std::size_t end) {
            for (std::size_t row = begin; row < end; ++row)
                rms_norm(out.row(row), w.per_layer_output_norm, config_.rms_norm_eps, out.row(row));
        });
    }

private:
    const model_config& config_;
    std::size_t size_;
    activations inputs_; // (rows, layers * size)
    activations given_;  // likewise, by the token
    activations one_;    // (rows, size)
};

}} // namespace kvcache
