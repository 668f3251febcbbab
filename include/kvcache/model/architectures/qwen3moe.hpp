// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/model/architectures/architecture.hpp>

namespace kvcache { inline namespace KVCACHE_ABI { namespace architectures {

/// Qwen3 with a mixture of experts (Yang et al. 2025): Qwen3's attention.
inline constexpr architecture qwen3moe = {
    .name = "qwen3moe",
    .model_type = "qwen3_moe",
    .class_name = "Qwen3MoeForCausalLM",
    .qk_norm = head_norm::each,
    .bias_option = true,
    .experts = true,
    .window_switch = true,
    .kv_heads = 4,
    .max_positions = 32768,
    .expert_count = 128,
    .experts_used = 8,
    .expert_size = 768,
};

}}} // namespace kvcache::architectures
