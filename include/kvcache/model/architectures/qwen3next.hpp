// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/model/architectures/architecture.hpp>
#include <kvcache/model/architectures/qwen35.hpp>

namespace kvcache { inline namespace KVCACHE_ABI { namespace architectures {

/// Qwen3-Next (Qwen 2025): Qwen3.5's layers, whose checkpoints store the inputs of Gated DeltaNet by key head, and a
/// shared expert.
inline constexpr architecture qwen3next = [] {
    architecture made = qwen35;
    made.name = "qwen3next";
    made.model_type = "qwen3_next";
    made.class_name = "Qwen3NextForCausalLM";
    made.experts = true;
    made.kv_heads = 2;
    made.expert_size = 512;
    made.shared_size = 512;
    made.expert_count = 512;
    made.experts_used = 10;
    made.joined_heads = true;
    made.tiled_values = false;
    made.rope_sections = false;
    return made;
}();

}}} // namespace kvcache::architectures
