// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/model/architectures/architecture.hpp>

namespace kvcache { inline namespace KVCACHE_ABI { namespace architectures {

/// Qwen3, dense: Llama's blocks with normalized heads of q and k (Yang et al. 2025).
inline constexpr architecture qwen3 = {
    .name = "qwen3",
    .model_type = "qwen3",
    .class_name = "Qwen3ForCausalLM",
    .qk_norm = head_norm::each,
    .bias_option = true,
    .window_switch = true,
    .kv_heads = 32,
    .head_dim = 128,
    .max_positions = 32768,
};

}}} // namespace kvcache::architectures
