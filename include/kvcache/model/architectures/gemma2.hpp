// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/model/architectures/architecture.hpp>

namespace kvcache { inline namespace KVCACHE_ABI { namespace architectures {

/// Names of the four norms of Gemma's blocks, and of OLMo 2's.
inline constexpr weight_naming gemma_names[] = {
    {weight_role::attention_output_norm, "post_attention_layernorm", "post_attention_norm"},
    {weight_role::mlp_norm, "pre_feedforward_layernorm", "ffn_norm"},
    {weight_role::mlp_output_norm, "post_feedforward_layernorm", "post_ffw_norm"},
};

/// Gemma 2 (Google 2024): norms before and after, caps of scores and logits, a window in every other layer.
inline constexpr architecture gemma2 = {
    .name = "gemma2",
    .model_type = "gemma2",
    .class_name = "Gemma2ForCausalLM",
    .norms = norm_placement::both,
    .gate = gate_function::gelu,
    .bias_option = true,
    .scaled_embedding = true,
    .score_scale = true,
    .caps = true,
    .norm_offset = true,
    .window_period = 2,
    .window = 4096,
    .kv_heads = 4,
    .head_dim = 256,
    .max_positions = 8192,
    .bos = 2,
    .eos = 1,
    .tied_head = true,
    .score_cap = 50.0,
    .logit_cap = 30.0,
    .scaled_by_hidden = 46,
    .names = gemma_names,
};

}}} // namespace kvcache::architectures
