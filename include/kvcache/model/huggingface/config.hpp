// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/model/config.hpp>

#include <filesystem>

namespace kvcache::inline KVCACHE_ABI {

/// Reads config.json of a Hugging Face model directory, and the end-of-text ids of generation_config.json if it is
/// there.
///
/// Runs model_type llama (Llama 1 to 3.1, TinyLlama, SmolLM, SmolLM2), mistral, qwen2 (Qwen 1.5 to 2.5) and qwen3.
/// An absent optional field has the default that transformers gives it for that model_type. What this library would run
/// otherwise than transformers is refused: other architectures and activations, RoPE scalings other than linear and
/// llama3, an active sliding window, quantisation, partial or interleaved rotation, soft-capping, scaled scores.
///
/// Errors: not_found, malformed, unsupported, mismatched, out_of_range, with the field as config.json spells it.
KVCACHE_ONCE [[nodiscard]] result<model_config> read_model_config(const std::filesystem::path& directory);

} // namespace kvcache

#if !KVCACHE_COMPILED
#include <kvcache/model/huggingface/impl/config.hpp>
#endif
