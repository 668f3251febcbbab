// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/model/huggingface/checkpoint.hpp>
#include <kvcache/model/huggingface/config.hpp>
#include <kvcache/model/transformer.hpp>

#include <filesystem>
#include <utility>

namespace kvcache {

/// A model from a directory, and the identity of what it computes.
struct loaded_model {
    transformer model;
    digest weights; ///< Of the checkpoint's names, dtypes, shapes and bytes.
};

/// Opens a Hugging Face model directory: config.json and model.safetensors, or shards with an index. Weights are
/// mapped, packed once, and the files closed. `progress(done, of)` is called after each layer. Errors: what the model
/// cannot run, by the field's name; missing, truncated or lying files.
template <class Progress>
[[nodiscard]] result<loaded_model> load_model(const std::filesystem::path& directory, Progress progress) {
    auto config = read_model_config(directory);
    if (!config)
        return config.error();
    const auto files = checkpoint::open(directory);
    if (!files)
        return files.error();
    if (auto fits = files->holds(*config); !fits)
        return fits.error();
    auto weights = load_weights(*config, *files, progress);
    if (!weights)
        return weights.error();
    const auto digest = files->digest();
    if (!digest)
        return digest.error();
    return loaded_model{transformer(std::move(*config), std::move(*weights)), *digest};
}

[[nodiscard]] inline result<loaded_model> load_model(const std::filesystem::path& directory) {
    return load_model(directory, [](std::size_t, std::size_t) {});
}

} // namespace kvcache
