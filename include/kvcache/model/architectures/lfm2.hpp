// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/model/architectures/architecture.hpp>

namespace kvcache { inline namespace KVCACHE_ABI { namespace architectures {

inline constexpr weight_naming lfm2_names[] = {
    {weight_role::final_norm, "model.embedding_norm", "token_embd_norm"},
    {weight_role::attention_norm, "operator_norm", "attn_norm"},
    {weight_role::query_norm, "self_attn.q_layernorm", "attn_q_norm"},
    {weight_role::key_norm, "self_attn.k_layernorm", "attn_k_norm"},
    {weight_role::attention_output, "self_attn.out_proj", "attn_output"},
    {weight_role::mlp_norm, "ffn_norm", "ffn_norm"},
    {weight_role::gate, "feed_forward.w1", "ffn_gate"},
    {weight_role::up, "feed_forward.w3", "ffn_up"},
    {weight_role::down, "feed_forward.w2", "ffn_down"},
    {weight_role::mixer_input, "conv.in_proj", "shortconv.in_proj"},
    {weight_role::mixer_convolution, "conv.conv", "shortconv.conv"},
    {weight_role::mixer_output, "conv.out_proj", "shortconv.out_proj"},
};

/// LFM2 (Liquid AI 2025): short convolutions in most layers, grouped-query attention in the others.
inline constexpr architecture lfm2 = {
    .name = "lfm2",
    .model_type = "lfm2",
    .class_name = "Lfm2ForCausalLM",
    .qk_norm = head_norm::each,
    .mixer = layer_mixer::short_convolution,
    .kv_heads = 8,
    .max_positions = 128000,
    .eps = 1e-5,
    .eps_field = "norm_eps",
    .theta = 1000000.0,
    .bos = 1,
    .eos = 2,
    .tied_head = true,
    .names = lfm2_names,
};

}}} // namespace kvcache::architectures
