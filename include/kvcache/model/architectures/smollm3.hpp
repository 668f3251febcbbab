// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/model/architectures/architecture.hpp>

namespace kvcache { inline namespace KVCACHE_ABI { namespace architectures {

/// SmolLM3: Llama's blocks, of which every fourth has no RoPE (Hugging Face 2025; Yang et al. 2025, NoPE).
inline constexpr architecture smollm3 = {
    .name = "smollm3",
    .model_type = "smollm3",
    .class_name = "SmolLM3ForCausalLM",
    .bias_option = true,
    .mlp_bias_option = true,
    .window_switch = true,
    .unrotated_period = 4,
    .kv_heads = 4,
    .max_positions = 32768,
    .theta = 2000000.0,
    .bos = 128000,
    .eos = 128001,
    .tied_head = true,
    .interleaved = true,
};

}}} // namespace kvcache::architectures
