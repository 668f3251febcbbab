// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/model/architectures/architecture.hpp>

namespace kvcache { inline namespace KVCACHE_ABI { namespace architectures {

inline constexpr weight_naming qwen35_names[] = {
    {weight_role::mlp_norm, "post_attention_layernorm", "post_attention_norm"},
};

/// Qwen3.5 (Qwen 2026), text: Gated DeltaNet in three of four layers, gated attention with a partial rotation in the
/// others.
inline constexpr architecture qwen35 = {
    .name = "qwen35",
    .model_type = "qwen3_5_text",
    .class_name = "Qwen3_5ForCausalLM",
    .qk_norm = head_norm::each,
    .bias_option = true,
    .norm_offset = true,
    .mixer = layer_mixer::gated_delta,
    .attention_period = 4,
    .tiled_values = true,
    .gated_attention = true,
    .partial_rope = true,
    .rotary_part = 0.25,
    .rope_sections = true,
    .kv_heads = 4,
    .head_dim = 256,
    .max_positions = 32768,
    .names = qwen35_names,
};

}}} // namespace kvcache::architectures
