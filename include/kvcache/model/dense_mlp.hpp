// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/kernel/math.hpp>
#include <kvcache/kernel/thread_pool.hpp>
#include <kvcache/model/activations.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/linear.hpp>
#include <kvcache/model/weights.hpp>

#include <cstddef>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI {

/// gate(x) * y by the function of a model, into `to`, which may be `gate`. (columns)
inline void gated(const model_config& config, std::span<const float> gate, std::span<const float> up,
                  std::span<float> to) {
    if (config.gate == gate_function::gelu)
        gated_gelu(gate, up, to);
    else if (config.gate == gate_function::clamped_silu)
        gated_clamped_silu(gate, up, config.gate_alpha, config.gate_limit, to);
    else
        gated_silu(gate, up, to);
}

/// A gated MLP (Shazeer 2020): down(gate(x) * up(x)).
class dense_mlp {
public:
    explicit dense_mlp(const model_config& config)
        : config_(config), inner_(2 * config.largest(&layer_config::intermediate_size)) {}

    /// Ensures memory for `rows` rows. Allocates only if it grows.
    void make_room(std::size_t rows) { inner_.make_room(rows); }

    /// Computes out = mlp(x) for the first `rows` rows; out may be x. Requires: room for them. (rows, hidden)
    void run(const block_weights& w, const activations& x, std::size_t rows, activations& out, thread_pool& threads,
             int8_block_rows& scratch) {
        const std::size_t size = w.down.inputs();
        w.gate_up.apply(x.in(rows), inner_.out(), threads, scratch);
        threads.parallel_for(rows, rows * size * 16, [&](std::size_t begin, std::size_t end) {
            for (std::size_t row = begin; row < end; ++row)
                gated(config_, inner_.row(row).first(size), inner_.row(row).subspan(size, size),
                      inner_.row(row).first(size));
        });
        w.down.apply(inner_.in(rows), out.out(), threads, scratch);
    }

private:
    const model_config& config_;
    activations inner_; // (rows, 2 intermediate)
};

}} // namespace kvcache
