// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/gguf/checkpoint.hpp>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Reads the configuration of a GGUF model from its keys: the architectures llama (Mistral's too), qwen2 and qwen3.
/// The biases and the head are those that the file has tensors for; `rope_freqs.weight` gives the RoPE factors. Ends of
/// an answer are the ids that the file names and the tokens known to end a turn ("<|im_end|>", "<|eot_id|>"). Errors:
/// unsupported, for another architecture, and for a key that may change the results and is not known; not_found,
/// malformed, mismatched, out_of_range. The error names the key.
KVCACHE_ONCE [[nodiscard]] result<model_config> read_model_config(const gguf_checkpoint& file);

}} // namespace kvcache

#if !KVCACHE_COMPILED
#include <kvcache/model/gguf/impl/config.hpp>
#endif
