// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/model/architectures/all.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/tensor_view.hpp>

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Name of a weight in a Hugging Face checkpoint, and its shape.
struct weight_name {
    std::string name = {};
    std::vector<std::size_t> shape = {}; ///< Outermost first; (out, in) for a matrix, (channels, 1, taps).
    head_layout heads = {};              ///< Where RoPE rotates a part of each head.

    friend bool operator==(const weight_name&, const weight_name&) = default;
};

/// What a checkpoint of Hugging Face stores for the numbers x of a vector.
enum class stored_form {
    plain,
    less_one,        ///< x - 1
    log_of_negative, ///< log(-x)
};

/// Tensors that are stored as one: matrices concatenated for one GEMM, or concatenated vectors.
struct weight_group {
    std::vector<weight_name> parts = {};
    weight_role role = {};
    bool bias = false; ///< Biases of the group before it.
    stored_form form = stored_form::plain;
    std::size_t expert = 0;  ///< Of a role that is an expert's.
    std::size_t layer = 0;   ///< Of a role that is a layer's.
    bool ends_layer = false; ///< Last group of a layer.
};

/// The architecture of a model; Llama's for a name that is not known.
[[nodiscard]] inline const architecture& architecture_of(const model_config& config) {
    const architecture* known = find_architecture(config.architecture);
    return known != nullptr ? *known : known_architectures[0];
}

inline constexpr std::string_view embedding_name = "model.embed_tokens.weight"; ///< (vocabulary, hidden)
inline constexpr std::string_view head_name = "lm_head.weight";                 ///< (vocabulary, hidden)

/// Name of a weight of layer `layer`: "model.layers.3.self_attn.q_proj.weight" for "self_attn.q_proj.weight".
[[nodiscard]] inline std::string layer_weight_name(std::size_t layer, std::string_view part) {
    return detail::joined({"model.layers.", std::to_string(layer), ".", part});
}

namespace detail {

/// Lists the groups of a model's weights.
class weight_lister {
public:
    explicit weight_lister(const model_config& config) : config_(config), of_(architecture_of(config)) {}

    [[nodiscard]] std::vector<weight_group> list() && {
        const std::size_t hidden = config_.hidden_size;
        global(config_.tied_head ? weight_role::embedding : weight_role::head, weight_role::head);
        if (!config_.tied_head)
            global(weight_role::embedding, weight_role::embedding);
        norm(weight_role::final_norm, text(weight_role::final_norm, ".weight"), hidden);
        if (const std::size_t all = config_.layers * config_.per_layer_size; all != 0) {
            add(weight_role::per_layer_embedding,
                {{text(weight_role::per_layer_embedding, ".weight"), {config_.vocabulary, all}}});
            add(weight_role::per_layer_projection,
                {{text(weight_role::per_layer_projection, ".weight"), {all, hidden}}});
            norm(weight_role::per_layer_norm, text(weight_role::per_layer_norm, ".weight"), config_.per_layer_size);
        }
        for (layer_ = 0; layer_ < config_.layers; ++layer_)
            list_layer();
        return std::move(groups_);
    }

private:
    struct sized_role {
        weight_role role;
        std::size_t outputs;
    };

    void list_layer() {
        const bool before = config_.norms != norm_placement::after, after = config_.norms != norm_placement::before;
        const std::size_t hidden = config_.hidden_size, inner = config_.layer(layer_).intermediate_size;
        if (before)
            vector(weight_role::attention_norm, hidden);
        if (config_.layer(layer_).recurrent)
            list_mixer();
        else
            list_attention();
        if (after)
            vector(weight_role::attention_output_norm, hidden);
        if (before)
            vector(weight_role::mlp_norm, hidden);
        if (config_.layer(layer_).experts)
            list_experts();
        else if (of_.fused || config_.joined_mlp)
            product(weight_role::gate_up, {{weight_role::gate_up, 2 * inner}}, hidden, config_.mlp_bias);
        else
            product(weight_role::gate_up, {{weight_role::gate, inner}, {weight_role::up, inner}}, hidden,
                    config_.mlp_bias);
        if (!config_.layer(layer_).experts)
            product(weight_role::down, {{weight_role::down, hidden}}, inner, config_.mlp_bias);
        if (after)
            vector(weight_role::mlp_output_norm, hidden);
        if (const std::size_t own = config_.per_layer_size; own != 0) {
            product(weight_role::per_layer_gate, {{weight_role::per_layer_gate, own}}, hidden, false);
            product(weight_role::per_layer_output, {{weight_role::per_layer_output, hidden}}, own, false);
            vector(weight_role::per_layer_output_norm, hidden);
        }
        if (config_.layer_scales)
            add(weight_role::layer_scale, {{in_layer(weight_role::layer_scale, ""), {1}}});
        groups_.back().ends_layer = true;
    }

    void list_attention() {
        const std::size_t hidden = config_.hidden_size;
        const layer_config of = config_.layer(layer_);
        const std::size_t q = config_.heads * of.head_dim, kv = of.kv_heads * of.head_dim;
        std::vector<sized_role> inputs{{weight_role::query, config_.gated_attention ? 2 * q : q}};
        if (!of.reads)
            inputs.push_back({weight_role::key, kv});
        if (!of.reads && !of.keys_are_values)
            inputs.push_back({weight_role::value, kv});
        if (of_.fused)
            product(weight_role::query_key_value, {{weight_role::query_key_value, q + 2 * kv}}, hidden,
                    config_.qkv_bias);
        else
            product(weight_role::query_key_value, inputs, hidden, config_.qkv_bias);
        if (config_.qk_norm != head_norm::none) {
            const bool all = config_.qk_norm == head_norm::all;
            vector(weight_role::query_norm, all ? q : of.head_dim);
            if (!of.reads)
                vector(weight_role::key_norm, all ? kv : of.head_dim);
        }
        if (config_.sinks)
            add(weight_role::attention_sinks, {{in_layer(weight_role::attention_sinks, ""), {config_.heads}}});
        product(weight_role::attention_output, {{weight_role::attention_output, hidden}}, q, config_.output_bias);
    }

    void list_mixer() {
        const std::size_t hidden = config_.hidden_size, channels = config_.convolved(), out = config_.mixer_outputs();
        const recurrence_config& of = config_.recurrence;
        const bool delta = config_.mixer == layer_mixer::gated_delta;
        std::vector<sized_role> inputs{{weight_role::mixer_input, config_.mixer_inputs()}};
        if (delta && of.joined_heads)
            inputs = {{weight_role::mixer_heads, channels + out}};
        else if (delta)
            inputs = {{weight_role::mixer_convolved, channels}, {weight_role::mixer_gate, out}};
        if (delta && of.joined_rates)
            inputs.push_back({weight_role::mixer_rates, 2 * of.value_heads});
        else if (delta)
            for (const weight_role rate : {weight_role::mixer_rate, weight_role::mixer_decay_input})
                inputs.push_back({rate, of.value_heads});
        product(weight_role::mixer_input, inputs, hidden, false);
        add(weight_role::mixer_convolution,
            {{in_layer(weight_role::mixer_convolution, ".weight"), {channels, 1, of.taps}}});
        if (of.biased) {
            add(weight_role::mixer_convolution, {{in_layer(weight_role::mixer_convolution, ".bias"), {channels}}});
            groups_.back().bias = true;
        }
        if (config_.mixer != layer_mixer::short_convolution) {
            add(weight_role::mixer_time_bias, {{in_layer(weight_role::mixer_time_bias, ""), {of.value_heads}}});
            add(weight_role::mixer_decay, {{in_layer(weight_role::mixer_decay, ""), {of.value_heads}}});
            groups_.back().form = stored_form::log_of_negative;
            if (!delta)
                add(weight_role::mixer_skip, {{in_layer(weight_role::mixer_skip, ""), {of.value_heads}}});
            add(weight_role::mixer_norm,
                {{in_layer(weight_role::mixer_norm, ".weight"), {delta ? of.value_dim : out}}});
        }
        product(weight_role::mixer_output, {{weight_role::mixer_output, hidden}}, out, false);
    }

    void list_experts() {
        const std::size_t hidden = config_.hidden_size, inner = config_.experts.size;
        const bool biased = config_.experts.biased;
        product(weight_role::router, {{weight_role::router, config_.experts.count}}, hidden, biased);
        for (expert_ = 0; expert_ < config_.experts.count; ++expert_) {
            product(weight_role::expert_gate_up, {{weight_role::expert_gate, inner}, {weight_role::expert_up, inner}},
                    hidden, biased);
            product(weight_role::expert_down, {{weight_role::expert_down, hidden}}, inner, biased);
        }
        expert_ = 0;
        if (const std::size_t shared = config_.experts.shared; shared != 0) {
            const bool joined = config_.joined_mlp; // the names are then those of dense MLPs
            std::vector<sized_role> halves{{weight_role::shared_gate, shared}, {weight_role::shared_up, shared}};
            if (joined)
                halves = {{weight_role::gate_up, 2 * shared}};
            product(weight_role::shared_gate_up, halves, hidden, false);
            product(weight_role::shared_down, {{joined ? weight_role::down : weight_role::shared_down, hidden}}, shared,
                    false);
            if (config_.experts.scored_shared)
                product(weight_role::shared_router, {{weight_role::shared_router, 1}}, hidden, false);
        }
    }

    // The heads of a weight of which RoPE rotates a part.
    [[nodiscard]] head_layout heads_of(weight_role role) const {
        const std::size_t dim = config_.head_dim, q = config_.heads * dim, kv = config_.kv_heads * dim;
        const bool all = config_.qk_norm == head_norm::all;
        const std::size_t rows = role == weight_role::query             ? q
                                 : role == weight_role::key             ? kv
                                 : role == weight_role::query_key_value ? q + kv
                                 : role == weight_role::query_norm      ? (all ? q : dim)
                                 : role == weight_role::key_norm        ? (all ? kv : dim)
                                                                        : 0;
        if (config_.gated_attention && role == weight_role::query)
            return {2 * q, dim, config_.rotated(), {dim, dim}};
        const recurrence_config& of = config_.recurrence;
        const std::size_t values = of.key_heads == 0 ? 0 : of.value_heads / of.key_heads; // of a key head
        if (role == weight_role::mixer_heads)
            return {config_.convolved() + config_.mixer_outputs(),
                    of.key_dim,
                    of.key_dim,
                    {of.key_dim, of.key_dim, values * of.value_dim, values * of.value_dim}};
        if (role == weight_role::mixer_rates)
            return {2 * of.value_heads, values, values, {values, values}};
        return rows == 0 || config_.rotated() == dim ? head_layout{} : head_layout{rows, dim, config_.rotated()};
    }

    [[nodiscard]] std::string text(weight_role role, std::string_view suffix) const {
        return joined({of_.naming(role).huggingface, suffix});
    }
    [[nodiscard]] std::string in_layer(weight_role role, std::string_view suffix) const {
        std::string part = text(role, suffix);
        if (const std::size_t star = part.find('*'); star != part.npos)
            part.replace(star, 1, std::to_string(expert_));
        return layer_weight_name(layer_, part);
    }
    void add(weight_role role, std::vector<weight_name> parts) {
        groups_.push_back({.parts = std::move(parts), .role = role, .expert = expert_, .layer = layer_});
    }
    void global(weight_role named, weight_role role) {
        add(role, {{text(named, ".weight"), {config_.vocabulary, config_.hidden_size}}});
    }
    void vector(weight_role role, std::size_t size) { norm(role, in_layer(role, ".weight"), size); }
    void norm(weight_role role, std::string name, std::size_t size) {
        add(role, {{std::move(name), {size}, heads_of(role)}});
        if (of_.norm_offset)
            groups_.back().form = stored_form::less_one;
    }
    void product(weight_role role, const std::vector<sized_role>& of, std::size_t inputs, bool biased) {
        std::vector<weight_name> matrices, biases;
        for (const auto& [part, outputs] : of) {
            matrices.push_back({in_layer(part, ".weight"), {outputs, inputs}, heads_of(part)});
            biases.push_back({in_layer(part, ".bias"), {outputs}, heads_of(part)});
        }
        add(role, std::move(matrices));
        if (!biased)
            return;
        add(role, std::move(biases));
        groups_.back().bias = true;
    }

    const model_config& config_;
    const architecture& of_;
    std::size_t layer_ = 0, expert_ = 0;
    std::vector<weight_group> groups_;
};

} // namespace detail

/// Groups of a model's weights, in the order of its image:
///
///     embedding, head (vocabulary, hidden_size); the head alone if it is tied
///     final_norm, attention_norm, mlp_norm, and those of outputs (hidden_size)
///     q (heads * head_dim, hidden_size), k and v (kv_heads * head_dim, hidden_size); norms of q and k (head_dim),
///     or as many as all heads together have; attention_sinks (heads)
///     attention_output (hidden_size, heads * head_dim)
///     of a recurrent layer: its input (mixer_inputs, hidden_size), convolution (channels, 1, taps),
///     time bias, decay and skip (value_heads), norm (value_dim) or of all heads, output (hidden_size, mixer_outputs)
///     gate, up (intermediate_size, hidden_size), down (hidden_size, intermediate_size)
///     inputs of layers: (vocabulary, layers * per_layer_size), (layers * per_layer_size, hidden_size), norm; in a
///     layer gate (per_layer_size, hidden_size), output (hidden_size, per_layer_size), norm; layer_scale (1) router
///     (experts, hidden_size), gate, up and down of each expert, and of the shared one with its router
[[nodiscard]] inline std::vector<weight_group> weight_groups(const model_config& config) {
    return detail::weight_lister(config).list();
}

/// All weights of a model, in the order of its image; without lm_head if the head is tied.
[[nodiscard]] inline std::vector<weight_name> weights_of(const model_config& config) {
    std::vector<weight_name> weights;
    for (weight_group& group : weight_groups(config))
        for (weight_name& part : group.parts)
            weights.push_back(std::move(part));
    return weights;
}

}} // namespace kvcache
