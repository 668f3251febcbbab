// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/model/architectures/architecture.hpp>

namespace kvcache { inline namespace KVCACHE_ABI { namespace architectures {

/// Names of the fused matrices of Phi-3.
inline constexpr weight_naming phi3_names[] = {
    {weight_role::query_key_value, "self_attn.qkv_proj", "attn_qkv"},
    {weight_role::gate_up, "mlp.gate_up_proj", "ffn_up"},
};

/// Phi-3 and Phi-4, dense: Llama's blocks with fused matrices, a window in all layers where the file has one, and
/// factors of RoPE for long contexts (Abdin et al. 2024).
inline constexpr architecture phi3 = {
    .name = "phi3",
    .model_type = "phi3",
    .class_name = "Phi3ForCausalLM",
    .fused = true,
    .partial_rope = true,
    .long_rope = true,
    .window_period = 1,
    .max_positions = 4096,
    .eps = 1e-5,
    .bos = 1,
    .eos = 32000,
    .names = phi3_names,
};

}}} // namespace kvcache::architectures
