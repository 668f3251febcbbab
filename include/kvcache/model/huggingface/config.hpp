// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/model/config.hpp>

#include <filesystem>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Reads config.json of a Hugging Face model directory, and the end-of-text ids of generation_config.json if it exists.
///
/// Supports the model_types of known_architectures. Of a multimodal model the text model is read ("text_config"). An
/// absent optional field has the default of transformers for that model_type. Rejects everything that this library
/// would compute differently from transformers: other architectures and activations, rotations, masks and factors that
/// the architecture does not have, quantization.
///
/// Errors: not_found, malformed, unsupported, mismatched, out_of_range, with the field name as in config.json.
KVCACHE_ONCE [[nodiscard]] result<model_config> read_model_config(const std::filesystem::path& directory);

}} // namespace kvcache

#if !KVCACHE_COMPILED
#include <kvcache/model/huggingface/impl/config.hpp>
#endif
