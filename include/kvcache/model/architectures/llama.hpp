// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/model/architectures/architecture.hpp>

namespace kvcache { inline namespace KVCACHE_ABI { namespace architectures {

/// Llama 1 to 3.1, TinyLlama, SmolLM and SmolLM2 (Touvron et al. 2023). GGUF files of Mistral are of this one.
inline constexpr architecture llama = {
    .name = "llama",
    .model_type = "llama",
    .class_name = "LlamaForCausalLM",
    .bias_option = true,
    .mlp_bias_option = true,
    .experts = true, // of GGUF files of Mixtral
    .normalized_experts = true,
    .max_positions = 2048,
    .bos = 1,
    .eos = 2,
    .interleaved = true,
};

}}} // namespace kvcache::architectures
