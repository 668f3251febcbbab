// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/model/architectures/architecture.hpp>

namespace kvcache { inline namespace KVCACHE_ABI { namespace architectures {

/// Mistral 7B and its successors: Llama's blocks, with a window in all layers unless it is off (Jiang et al. 2023).
inline constexpr architecture mistral = {
    .name = "mistral",
    .model_type = "mistral",
    .class_name = "MistralForCausalLM",
    .window_period = 1,
    .window = 4096,
    .kv_heads = 8,
    .max_positions = 131072,
    .bos = 1,
    .eos = 2,
    .has_gguf = false,
};

}}} // namespace kvcache::architectures
