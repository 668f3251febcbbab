// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/kernel/block_format.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/gguf/checkpoint.hpp>
#include <kvcache/model/huggingface/checkpoint.hpp>
#include <kvcache/model/huggingface/config.hpp>
#include <kvcache/model/transformer.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <support/gguf_builder.hpp>

namespace testing_files {

inline const std::filesystem::path golden_checkpoints =
    std::filesystem::path(KVCACHE_SOURCE_DIR) / "tests" / "data" / "checkpoints";

/// Type number and bytes of a stored tensor.
using gguf_data = std::pair<std::uint32_t, std::string>;

/// A tensor's bytes as a checkpoint has them.
[[nodiscard]] inline gguf_data as_it_is(const kvcache::tensor_view& view) {
    constexpr kvcache::block_format formats[] = {kvcache::block_format::f32, kvcache::block_format::f16,
                                                 kvcache::block_format::bf16};
    return {static_cast<std::uint32_t>(formats[static_cast<std::size_t>(view.dtype)]),
            {reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size()}};
}

/// The rows of heads in the order in which the llama architecture stores q and k: pairs (i, i + head / 2) adjacent.
[[nodiscard]] inline std::string interleaved(const std::string& bytes, std::size_t rows, std::size_t head) {
    const std::size_t width = bytes.size() / rows;
    std::string made;
    for (std::size_t begin = 0; begin < rows; begin += head)
        for (std::size_t i = 0; i < head; ++i)
            made += bytes.substr((begin + i / 2 + i % 2 * (head / 2)) * width, width);
    return made;
}

/// The keys of a configuration, as converters write them.
inline void describe(gguf_builder& to, const kvcache::model_config& config) {
    const std::string architecture = config.architecture == "mistral" ? "llama" : config.architecture;
    const auto number = [&](const std::string& key, std::size_t value) {
        to.number(architecture + "." + key, static_cast<std::uint32_t>(value));
    };
    to.text("general.architecture", architecture).text("general.type", "model");
    number("block_count", config.layers);
    number("context_length", config.max_positions);
    number("embedding_length", config.hidden_size);
    number("feed_forward_length", config.intermediate_size);
    number("attention.head_count", config.heads);
    number("attention.head_count_kv", config.kv_heads);
    number("attention.key_length", config.head_dim);
    number("attention.value_length", config.head_dim);
    number("rope.dimension_count", config.head_dim);
    number("vocab_size", config.vocabulary);
    to.number(architecture + ".rope.freq_base", static_cast<float>(config.rope.theta));
    to.number(architecture + ".attention.layer_norm_rms_epsilon", config.rms_norm_eps);
    if (config.rope.scaling == kvcache::rope_config::kind::linear) {
        to.text(architecture + ".rope.scaling.type", "linear");
        to.number(architecture + ".rope.scaling.factor", static_cast<float>(config.rope.factor));
    }
    if (!config.bos.empty())
        to.number("tokenizer.ggml.bos_token_id", static_cast<std::uint32_t>(index_of(config.bos[0])));
    for (std::size_t i = 0; i < config.eos.size() && i < 2; ++i)
        to.number(i == 0 ? "tokenizer.ggml.eos_token_id" : "tokenizer.ggml.eot_token_id",
                  static_cast<std::uint32_t>(index_of(config.eos[i])));
}

/// The GGUF file of a golden checkpoint. `store(name, view)` gives the data of each matrix; the rest is stored as it
/// is.
template <class Store>
[[nodiscard]] gguf_builder gguf_of(const std::filesystem::path& directory, Store store) {
    const auto config = kvcache::read_model_config(directory);
    const auto weights = kvcache::checkpoint::open(directory);
    if (!config || !weights)
        throw std::runtime_error("no golden checkpoint");
    gguf_builder made;
    describe(made, *config);
    const bool is_llama = config->architecture == "llama" || config->architecture == "mistral";
    for (const auto& [name, shape] : kvcache::weights_of(*config)) {
        const auto view = *weights->tensor(name, shape);
        const std::string stored = kvcache::gguf_name(name);
        auto [type, bytes] = shape.size() == 2 ? store(stored, view) : as_it_is(view);
        if (is_llama && (stored.find(".attn_q.") != stored.npos || stored.find(".attn_k.") != stored.npos))
            bytes = interleaved(bytes, shape[0], config->head_dim);
        made.tensor(stored, shape, type, bytes);
    }
    if (config->rope.scaling == kvcache::rope_config::kind::llama3) {
        const auto plain = kvcache::rope::standard_frequencies(config->head_dim, config->rope.theta);
        const auto scaled = kvcache::make_rope(config->rope, config->head_dim);
        std::string factors;
        for (std::size_t i = 0; i < plain.size(); ++i)
            factors += gguf_builder::encoded(static_cast<float>(plain[i] / scaled.frequencies()[i]));
        made.tensor("rope_freqs.weight", {plain.size()}, 0, factors);
    }
    return made;
}
[[nodiscard]] inline gguf_builder gguf_of(const std::filesystem::path& directory) {
    return gguf_of(directory, [](const std::string&, const kvcache::tensor_view& view) { return as_it_is(view); });
}

} // namespace testing_files
