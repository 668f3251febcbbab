// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/model/architectures/architecture.hpp>
#include <kvcache/model/architectures/qwen35.hpp>

namespace kvcache { inline namespace KVCACHE_ABI { namespace architectures {

/// Qwen3.5 with a mixture of experts (Qwen 2026), text: Qwen3.5's layers, and a shared expert.
inline constexpr architecture qwen35moe = [] {
    architecture made = qwen35;
    made.name = "qwen35moe";
    made.model_type = "qwen3_5_moe_text";
    made.class_name = "Qwen3_5MoeForCausalLM";
    made.experts = true;
    made.kv_heads = 2;
    made.expert_size = 512;
    made.shared_size = 512;
    made.expert_count = 256;
    made.experts_used = 8;
    return made;
}();

}}} // namespace kvcache::architectures
