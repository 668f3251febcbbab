// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>

#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// RoPE parameters: how positions map to rotations. Every kind is a pure rotation, without a factor on the scores.
///
/// The inverse frequency of pair i is f(i) = theta^(-2 i / head_dim), scaled as `scaling` says:
///
///     none     f
///     linear   f / factor
///     llama3   by wavelength w = 2 pi / f against original_max_positions L:
///                w < L / high_freq_factor    f
///                w > L / low_freq_factor     f / factor
///                between                     (1 - s) f / factor + s f,
///                                            s = (L / w - low_freq_factor) / (high_freq_factor - low_freq_factor)
///     factors  f / factors[i]
///
/// Dimension i of a head is rotated with dimension i + head_dim / 2.
struct rope_config {
    enum class kind { none, linear, llama3, factors };

    double theta = 10000.0;
    kind scaling = kind::none;
    double factor = 1.0;                    ///< For linear and llama3.
    double low_freq_factor = 1.0;           ///< For llama3.
    double high_freq_factor = 4.0;          ///< For llama3.
    double original_max_positions = 8192.0; ///< For llama3: context length of the training before scaling.
    std::vector<float> factors = {};        ///< For factors: one for each pair, (head_dim / 2).

    friend bool operator==(const rope_config&, const rope_config&) = default;
};

/// Dimensions and options of a Llama-family decoder: pre-norm blocks of RMS norm, grouped-query attention with RoPE,
/// and a SiLU-gated MLP.
///
/// Weight shapes that follow from it, as stored (out, in):
///
///     embedding (vocabulary, hidden_size)           head  the same, or the embedding itself when tied_head
///     q (heads * head_dim, hidden_size)             k, v  (kv_heads * head_dim, hidden_size)
///     o (hidden_size, heads * head_dim)             q_norm, k_norm (head_dim)
///     gate, up (intermediate_size, hidden_size)     down  (hidden_size, intermediate_size)
struct model_config {
    std::string architecture = "llama"; ///< Name in the checkpoint: llama, mistral, qwen2, qwen3.
    std::size_t hidden_size = 0;
    std::size_t intermediate_size = 0;
    std::size_t layers = 0;
    std::size_t heads = 0;
    std::size_t kv_heads = 0;
    std::size_t head_dim = 0;
    std::size_t vocabulary = 0;
    std::size_t max_positions = 2048; ///< Context length of the training; RoPE itself has no limit.
    float rms_norm_eps = 1e-6F;
    rope_config rope = {};
    bool tied_head = false;   ///< The output head shares the embedding.
    bool qkv_bias = false;    ///< q, k and v have biases.
    bool output_bias = false; ///< o has a bias.
    bool mlp_bias = false;    ///< gate, up and down have biases.
    bool qk_norm = false;     ///< Each head of q and k is RMS-normalized over head_dim before RoPE.
    std::vector<token_id> bos = {};
    std::vector<token_id> eos = {};

    friend bool operator==(const model_config&, const model_config&) = default;

    /// Checks that the fields are valid and that all products of two extents fit 48 bits. Returns: an error that names
    /// the first invalid field.
    [[nodiscard]] result<void> check() const;
};

namespace detail {

[[nodiscard]] inline result<void> check_extent(std::string_view field, std::size_t value, std::size_t most) {
    if (value == 0 || value > most)
        return error{error_code::out_of_range, std::string(field),
                     std::string(field) + " is " + std::to_string(value) + "; it must be 1 to " + std::to_string(most)};
    return {};
}

[[nodiscard]] inline result<void> check_number(std::string_view field, double value, double least, double most) {
    if (!(std::isfinite(value) && value >= least && value <= most))
        return error{error_code::out_of_range, std::string(field),
                     std::string(field) + " is " + std::to_string(value) + "; it must be " + std::to_string(least) +
                         " to " + std::to_string(most)};
    return {};
}

} // namespace detail

inline result<void> model_config::check() const {
    // The limits are an order of magnitude above any published dense model, and keep a product of two extents, in
    // bytes, far below 64 bits.
    const struct {
        std::string_view name;
        std::size_t value, most;
    } extents[] = {
        {"hidden_size", hidden_size, 1u << 20}, {"intermediate_size", intermediate_size, 1u << 22},
        {"layers", layers, 1u << 13},           {"heads", heads, 1u << 13},
        {"kv_heads", kv_heads, 1u << 13},       {"head_dim", head_dim, 1u << 12},
        {"vocabulary", vocabulary, 1u << 24},   {"max_positions", max_positions, 1u << 30},
    };
    for (const auto& [name, value, most] : extents)
        if (auto fine = detail::check_extent(name, value, most); !fine)
            return fine;
    if (heads % kv_heads != 0)
        return error{error_code::mismatched, "kv_heads",
                     std::to_string(heads) + " heads do not share " + std::to_string(kv_heads) + " kv_heads evenly"};
    if (head_dim % 2 != 0)
        return error{error_code::mismatched, "head_dim",
                     "head_dim is " + std::to_string(head_dim) + "; RoPE rotates pairs, so it must be even"};

    if (!(std::isfinite(rms_norm_eps) && rms_norm_eps > 0 && rms_norm_eps < 1))
        return error{error_code::out_of_range, "rms_norm_eps",
                     "rms_norm_eps is " + std::to_string(rms_norm_eps) + "; it must be above 0 and below 1"};
    const struct {
        std::string_view name;
        double value, least, most;
    } numbers[] = {
        {"rope.theta", rope.theta, 1.0, 1e15},
        {"rope.factor", rope.factor, 1e-3, 1e6},
        {"rope.low_freq_factor", rope.low_freq_factor, 1e-6, 1e6},
        {"rope.high_freq_factor", rope.high_freq_factor, 1e-6, 1e6},
        {"rope.original_max_positions", rope.original_max_positions, 1.0, 1073741824.0},
    };
    for (const auto& [name, value, least, most] : numbers)
        if (auto fine = detail::check_number(name, value, least, most); !fine)
            return fine;
    if (rope.scaling == rope_config::kind::llama3 && !(rope.high_freq_factor > rope.low_freq_factor))
        return error{error_code::mismatched, "rope.high_freq_factor",
                     "rope.high_freq_factor must be above rope.low_freq_factor"};

    const std::size_t factors = rope.scaling == rope_config::kind::factors ? head_dim / 2 : 0;
    if (rope.factors.size() != factors)
        return error{error_code::mismatched, "rope.factors",
                     "rope.factors has " + std::to_string(rope.factors.size()) + " numbers; " +
                         std::to_string(factors) + " are needed"};
    for (const float one : rope.factors)
        if (auto fine = detail::check_number("rope.factors", static_cast<double>(one), 1e-6, 1e6); !fine)
            return fine;

    for (const token_id token : bos)
        if (index_of(token) < 0)
            return error{error_code::out_of_range, "bos", "a bos id is negative"};
    for (const token_id token : eos)
        if (index_of(token) < 0)
            return error{error_code::out_of_range, "eos", "an eos id is negative"};
    return {};
}

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
