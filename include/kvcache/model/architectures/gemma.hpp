// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/model/architectures/architecture.hpp>

namespace kvcache { inline namespace KVCACHE_ABI { namespace architectures {

/// Gemma, the first one, and CodeGemma (Google 2024): Llama's blocks with GELU and a scaled embedding.
inline constexpr architecture gemma = {
    .name = "gemma",
    .model_type = "gemma",
    .class_name = "GemmaForCausalLM",
    .gate = gate_function::gelu,
    .gelu_is_tanh = true,
    .bias_option = true,
    .scaled_embedding = true,
    .norm_offset = true,
    .kv_heads = 16,
    .head_dim = 256,
    .max_positions = 8192,
    .bos = 2,
    .eos = 1,
    .tied_head = true,
};

}}} // namespace kvcache::architectures
