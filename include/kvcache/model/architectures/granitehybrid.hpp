// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/model/architectures/architecture.hpp>

namespace kvcache { inline namespace KVCACHE_ABI { namespace architectures {

inline constexpr weight_naming granitehybrid_names[] = {
    {weight_role::mlp_norm, "post_attention_layernorm", "ffn_norm"},
    {weight_role::gate_up, "shared_mlp.input_linear"},
    {weight_role::down, "shared_mlp.output_linear", "ffn_down"},
    {weight_role::router, "block_sparse_moe.router.layer", "ffn_gate_inp"},
    {weight_role::expert_gate, "block_sparse_moe.experts.*.gate_proj", "ffn_gate_exps"},
    {weight_role::expert_up, "block_sparse_moe.experts.*.up_proj", "ffn_up_exps"},
    {weight_role::expert_down, "block_sparse_moe.experts.*.down_proj", "ffn_down_exps"},
    {weight_role::mixer_input, "mamba.in_proj", "ssm_in"},
    {weight_role::mixer_convolution, "mamba.conv1d", "ssm_conv1d"},
    {weight_role::mixer_time_bias, "mamba.dt_bias", "ssm_dt.bias", true},
    {weight_role::mixer_decay, "mamba.A_log", "ssm_a", true},
    {weight_role::mixer_skip, "mamba.D", "ssm_d", true},
    {weight_role::mixer_norm, "mamba.norm", "ssm_norm"},
    {weight_role::mixer_output, "mamba.out_proj", "ssm_out"},
};

/// Granite 4 (IBM 2025), hybrid models: Mamba-2 in most layers, attention without RoPE in the others; a dense MLP, or
/// experts and one that all tokens use.
inline constexpr architecture granitehybrid = {
    .name = "granitehybrid",
    .model_type = "granitemoehybrid",
    .class_name = "GraniteMoeHybridForCausalLM",
    .bias_option = true,
    .multipliers = true,
    .joined_mlp = true,
    .mixer = layer_mixer::mamba2,
    .experts = true,
    .normalized_experts = true,
    .rope_option = true,
    .max_positions = 2048,
    .bos = 1,
    .eos = 2,
    .expert_count = 8,
    .experts_used = 2,
    .scored_shared = false,
    .names = granitehybrid_names,
};

}}} // namespace kvcache::architectures
