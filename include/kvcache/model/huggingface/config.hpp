// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/model/config.hpp>

#include <filesystem>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Reads config.json of a Hugging Face model directory, and the end-of-text ids of generation_config.json if it exists.
///
/// Supports model_type llama (Llama 1 to 3.1, TinyLlama, SmolLM, SmolLM2), mistral, qwen2 (Qwen 1.5 to 2.5) and qwen3.
/// An absent optional field has the default of transformers for that model_type. Rejects everything that this library
/// would compute differently from transformers: other architectures and activations, RoPE scalings other than linear
/// and llama3, an active sliding window, quantization, partial or interleaved rotation, soft-capping, scaled scores.
///
/// Errors: not_found, malformed, unsupported, mismatched, out_of_range, with the field name as in config.json.
KVCACHE_ONCE [[nodiscard]] result<model_config> read_model_config(const std::filesystem::path& directory);

}} // namespace kvcache

#if !KVCACHE_COMPILED
#include <kvcache/model/huggingface/impl/config.hpp>
#endif
