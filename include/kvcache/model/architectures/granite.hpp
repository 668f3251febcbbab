// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/model/architectures/architecture.hpp>

namespace kvcache { inline namespace KVCACHE_ABI { namespace architectures {

/// Granite 3, dense: Llama's blocks with factors of embedding, residual stream, scores and logits (IBM 2024).
inline constexpr architecture granite = {
    .name = "granite",
    .model_type = "granite",
    .class_name = "GraniteForCausalLM",
    .bias_option = true,
    .mlp_bias_option = true,
    .multipliers = true,
    .max_positions = 2048,
    .bos = 1,
    .eos = 2,
    .interleaved = true,
};

}}} // namespace kvcache::architectures
