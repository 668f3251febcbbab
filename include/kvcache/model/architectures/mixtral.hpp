// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/model/architectures/architecture.hpp>

namespace kvcache { inline namespace KVCACHE_ABI { namespace architectures {

/// Names of Mixtral's experts.
inline constexpr weight_naming mixtral_names[] = {
    {weight_role::router, "block_sparse_moe.gate", "ffn_gate_inp"},
    {weight_role::expert_gate, "block_sparse_moe.experts.*.w1", "ffn_gate_exps"},
    {weight_role::expert_up, "block_sparse_moe.experts.*.w3", "ffn_up_exps"},
    {weight_role::expert_down, "block_sparse_moe.experts.*.w2", "ffn_down_exps"},
};

/// Mixtral: Mistral's blocks with a mixture of experts (Jiang et al. 2024). GGUF files of it name llama.
inline constexpr architecture mixtral = {
    .name = "mixtral",
    .model_type = "mixtral",
    .class_name = "MixtralForCausalLM",
    .experts = true,
    .normalized_experts = true,
    .window_period = 1,
    .kv_heads = 8,
    .max_positions = 131072,
    .eps = 1e-5,
    .theta = 1000000.0,
    .bos = 1,
    .eos = 2,
    .expert_count = 8,
    .experts_used = 2,
    .has_gguf = false,
    .names = mixtral_names,
};

}}} // namespace kvcache::architectures
