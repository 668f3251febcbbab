// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/model/architectures/architecture.hpp>
#include <kvcache/model/architectures/gemma2.hpp>

namespace kvcache { inline namespace KVCACHE_ABI { namespace architectures {

/// Gemma 3, text (Google 2025): norms before and after, normalized heads of q and k, a window in five of six layers
/// with a RoPE of its own.
inline constexpr architecture gemma3 = {
    .name = "gemma3",
    .model_type = "gemma3_text",
    .class_name = "Gemma3ForCausalLM",
    .norms = norm_placement::both,
    .gate = gate_function::gelu,
    .qk_norm = head_norm::each,
    .bias_option = true,
    .scaled_embedding = true,
    .score_scale = true,
    .caps = true,
    .norm_offset = true,
    .window_period = 6,
    .window = 4096,
    .window_theta = 10000.0,
    .window_theta_field = "rope_local_base_freq",
    .kv_heads = 4,
    .head_dim = 256,
    .max_positions = 131072,
    .theta = 1000000.0,
    .bos = 2,
    .eos = 1,
    .tied_head = true,
    .scaled_by_hidden = 62,
    .names = gemma_names,
};

}}} // namespace kvcache::architectures
