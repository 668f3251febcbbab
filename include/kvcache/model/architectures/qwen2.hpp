// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/model/architectures/architecture.hpp>

namespace kvcache { inline namespace KVCACHE_ABI { namespace architectures {

/// Qwen 1.5 to 2.5: Llama's blocks with biases of q, k and v (Yang et al. 2024).
inline constexpr architecture qwen2 = {
    .name = "qwen2",
    .model_type = "qwen2",
    .class_name = "Qwen2ForCausalLM",
    .qkv_bias = true,
    .window_switch = true,
    .kv_heads = 32,
    .max_positions = 32768,
};

}}} // namespace kvcache::architectures
