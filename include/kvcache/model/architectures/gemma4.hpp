// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/model/architectures/architecture.hpp>
#include <kvcache/model/architectures/gemma2.hpp>

namespace kvcache { inline namespace KVCACHE_ABI { namespace architectures {

/// Gemma 4, text, dense models (Google 2026): larger heads and a partly rotating RoPE in full attention, normalized
/// values, scores without a factor. The last layers may read the keys and values of earlier ones, and each layer may
/// have an input of its own for each token.
inline constexpr architecture gemma4 = {
    .name = "gemma4",
    .model_type = "gemma4_text",
    .class_name = "Gemma4ForCausalLM",
    .norms = norm_placement::both,
    .gate = gate_function::gelu,
    .qk_norm = head_norm::each,
    .bias_option = true,
    .scaled_embedding = true,
    .scores_times = 1.0,
    .value_norm = true,
    .caps = true,
    .layer_options = true,
    .window_period = 6,
    .window = 512,
    .window_theta = 10000.0,
    .rope_required = true,
    .kv_heads = 4,
    .head_dim = 256,
    .max_positions = 131072,
    .theta = 1000000.0,
    .bos = 2,
    .eos = 1,
    .tied_head = true,
    .names = gemma_names,
};

}}} // namespace kvcache::architectures
