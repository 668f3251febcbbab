// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/model/architectures/architecture.hpp>

namespace kvcache { inline namespace KVCACHE_ABI { namespace architectures {

inline constexpr weight_naming gpt_oss_names[] = {
    {weight_role::mlp_norm, "post_attention_layernorm", "post_attention_norm"},
    {weight_role::router, "mlp.router", "ffn_gate_inp"},
};

/// gpt-oss (OpenAI 2025): a window of 128 in every other layer, a learned sink for each head, YaRN, and four experts of
/// a token with biases and a clamped gate.
inline constexpr architecture gpt_oss = {
    .name = "gpt-oss",
    .model_type = "gpt_oss",
    .class_name = "GptOssForCausalLM",
    .gate = gate_function::clamped_silu,
    .bias_option = true,
    .bias_default = true,
    .sinks = true,
    .experts = true,
    .biased_experts = true,
    .mxfp4_experts = true,
    .normalized_experts = true,
    .window_period = 2,
    .window = 128,
    .rope_required = true,
    .yarn_truncates = false,
    .kv_heads = 8,
    .head_dim = 64,
    .max_positions = 131072,
    .eps = 1e-5,
    .theta = 150000.0,
    .expert_count = 128,
    .experts_used = 4,
    .names = gpt_oss_names,
};

}}} // namespace kvcache::architectures
