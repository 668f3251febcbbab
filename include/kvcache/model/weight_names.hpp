// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/model/config.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Name of a weight in a Hugging Face checkpoint, and its shape.
struct weight_name {
    std::string name = {};
    std::vector<std::size_t> shape = {}; ///< Outermost first; (out, in) for a matrix.

    friend bool operator==(const weight_name&, const weight_name&) = default;
};

inline constexpr std::string_view embedding_name = "model.embed_tokens.weight"; ///< (vocabulary, hidden)
inline constexpr std::string_view final_norm_name = "model.norm.weight";        ///< (hidden)
inline constexpr std::string_view head_name = "lm_head.weight";                 ///< (vocabulary, hidden)

/// Full name of a weight of layer `layer`: "model.layers.3.self_attn.q_proj.weight" for "self_attn.q_proj.weight".
[[nodiscard]] inline std::string layer_weight_name(std::size_t layer, std::string_view part) {
    return "model.layers." + std::to_string(layer) + "." + std::string(part);
}

/// Weights of layer `layer`, with the biases and norms of `config`. Requires: layer < config.layers.
[[nodiscard]] inline std::vector<weight_name> layer_weights(const model_config& config, std::size_t layer) {
    expects(layer < config.layers, "a layer is one of the model's");
    const std::size_t hidden = config.hidden_size;
    const std::size_t inner = config.intermediate_size;
    const std::size_t query = config.heads * config.head_dim;
    const std::size_t shared = config.kv_heads * config.head_dim;

    std::vector<weight_name> weights;
    const auto vector = [&](std::string_view part, std::size_t extent) {
        weights.push_back({layer_weight_name(layer, part), {extent}});
    };
    const auto product = [&](const std::string& part, std::size_t out, std::size_t in, bool bias) {
        weights.push_back({layer_weight_name(layer, part + ".weight"), {out, in}});
        if (bias)
            vector(part + ".bias", out);
    };
    vector("input_layernorm.weight", hidden);
    product("self_attn.q_proj", query, hidden, config.qkv_bias);
    product("self_attn.k_proj", shared, hidden, config.qkv_bias);
    product("self_attn.v_proj", shared, hidden, config.qkv_bias);
    if (config.qk_norm) {
        vector("self_attn.q_norm.weight", config.head_dim);
        vector("self_attn.k_norm.weight", config.head_dim);
    }
    product("self_attn.o_proj", hidden, query, config.output_bias);
    vector("post_attention_layernorm.weight", hidden);
    product("mlp.gate_proj", inner, hidden, config.mlp_bias);
    product("mlp.up_proj", inner, hidden, config.mlp_bias);
    product("mlp.down_proj", hidden, inner, config.mlp_bias);
    return weights;
}

/// All weights of a model, in order of use; without lm_head if the head is tied.
[[nodiscard]] inline std::vector<weight_name> weights_of(const model_config& config) {
    std::vector<weight_name> weights;
    weights.push_back({std::string(embedding_name), {config.vocabulary, config.hidden_size}});
    for (std::size_t layer = 0; layer != config.layers; ++layer)
        for (weight_name& weight : layer_weights(config, layer))
            weights.push_back(std::move(weight));
    weights.push_back({std::string(final_norm_name), {config.hidden_size}});
    if (!config.tied_head)
        weights.push_back({std::string(head_name), {config.vocabulary, config.hidden_size}});
    return weights;
}

}} // namespace kvcache
