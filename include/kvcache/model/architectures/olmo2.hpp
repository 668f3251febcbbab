// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/model/architectures/architecture.hpp>
#include <kvcache/model/architectures/gemma2.hpp>

namespace kvcache { inline namespace KVCACHE_ABI { namespace architectures {

/// OLMo 2 (OLMo 2 2024): Llama's blocks with norms of what attention and MLP give instead of what they take, and of all
/// heads of q and k together.
inline constexpr architecture olmo2 = {
    .name = "olmo2",
    .model_type = "olmo2",
    .class_name = "Olmo2ForCausalLM",
    .norms = norm_placement::after,
    .qk_norm = head_norm::all,
    .bias_option = true,
    .max_positions = 2048,
    .eps = 1e-5,
    .eos = 50279,
    .names = gemma_names,
};

}}} // namespace kvcache::architectures
