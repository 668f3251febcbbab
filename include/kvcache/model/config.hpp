// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/model/architectures/architecture.hpp>
#include <kvcache/model/layer_config.hpp>
#include <kvcache/model/rope_config.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Dimensions and options of a decoder: blocks of grouped-query attention and a gated MLP, each with RMS norms, around
/// a residual stream. The defaults are Llama's.
///
///     x = embedding_scale * embedding[token]
///     each layer:  x += residual_scale * norm(attention(norm(x)));  x += residual_scale * norm(mlp(norm(x)))
///     logits = cap(logit_scale * head norm(x)),  cap(y) = logit_cap * tanh(y / logit_cap)
///
/// with the norms that `norms` says. weight_names.hpp has the weights and their shapes.
struct model_config {
    static constexpr std::size_t most_layers = 1u << 13, most_experts = 1u << 16; ///< Experts of all layers.

    std::string architecture = "llama"; ///< One of known_architectures.
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
    bool tied_head = false;              ///< The output head shares the embedding.
    bool qkv_bias = false;               ///< q, k and v have biases.
    bool output_bias = false;            ///< o has a bias.
    bool mlp_bias = false;               ///< gate, up and down have biases.
    head_norm qk_norm = head_norm::none; ///< RMS norm of q and k, before RoPE.
    std::vector<token_id> bos = {};
    std::vector<token_id> eos = {};
    norm_placement norms = norm_placement::before;
    gate_function gate = gate_function::silu;
    float gate_alpha = 1.702F; ///< Of gate_function::clamped_silu.
    float gate_limit = 7.0F;
    bool sinks = false; ///< Each head of a layer has a learned attention sink.
    float embedding_scale = 1.0F;
    float score_scale = 0.0F; ///< Factor of attention scores; 0: head_dim^-0.5.
    float score_cap = 0.0F;   ///< Scores become score_cap * tanh(score / score_cap); 0: they stay.
    float residual_scale = 1.0F;
    float logit_scale = 1.0F;
    float logit_cap = 0.0F;                                ///< 0: logits stay.
    std::optional<rope_config> window_rope = std::nullopt; ///< RoPE of layers with a window, if it is another one.
    std::size_t rotary_dim = 0;   ///< Dimensions of a head that RoPE rotates, the first ones; 0: all.
    bool joined_mlp = false;      ///< Files have gate and up in one matrix.
    bool gated_attention = false; ///< The output of attention is multiplied by sigmoid of a gate, of q's projection.
    layer_mixer mixer = layer_mixer::attention; ///< Of recurrent layers.
    recurrence_config recurrence = {};
    expert_config experts = {};
    std::vector<layer_config> each_layer = {}; ///< (layers); empty: all have the defaults.
    bool value_norm = false;                   ///< Each head of v is RMS-normalized, without a weight.
    bool layer_scales = false;                 ///< The stream is multiplied by a weight after each layer.
    std::size_t per_layer_size = 0;            ///< Numbers of a token that a layer has as its own input; 0: none.

    friend bool operator==(const model_config&, const model_config&) = default;

    /// Dimensions of a head that RoPE rotates.
    [[nodiscard]] std::size_t rotated() const noexcept { return rotary_dim != 0 ? rotary_dim : head_dim; }

    /// What a layer does, with the model's sizes where it has none of its own. Requires: layer < layers.
    [[nodiscard]] layer_config layer(std::size_t layer) const {
        layer_config made = each_layer.empty() ? layer_config{} : each_layer[layer];
        made.head_dim = made.head_dim != 0 ? made.head_dim : head_dim;
        made.kv_heads = made.kv_heads != 0 ? made.kv_heads : kv_heads;
        made.intermediate_size = made.intermediate_size != 0 ? made.intermediate_size : intermediate_size;
        return made;
    }
    /// Dimensions of a head that are rotated in layers with a window, if these have a RoPE of their own, or in others.
    [[nodiscard]] std::size_t rotated(bool windows) const {
        for (std::size_t i = 0; i < layers && rotary_dim == 0; ++i)
            if (const layer_config one = layer(i); windows == (window_rope && one.window > 0))
                return one.head_dim;
        return rotated();
    }
    /// The largest size of a layer. `size`: a member of layer_config.
    [[nodiscard]] std::size_t largest(std::size_t layer_config::*size) const {
        std::size_t most = 0;
        for (std::size_t i = 0; i < layers; ++i)
            most = std::max(most, layer(i).*size);
        return most;
    }
    /// Whether layers keep keys and values of different sizes, or read those of others: a cache then needs
    /// layers::grouped.
    [[nodiscard]] bool needs_groups() const {
        return std::any_of(each_layer.begin(), each_layer.end(), [&](const layer_config& one) {
            return one.reads || one.recurrent || (one.head_dim != 0 && one.head_dim != head_dim) ||
                   (one.kv_heads != 0 && one.kv_heads != kv_heads);
        });
    }

    /// Numbers that the input projection of a recurrent layer gives: B, C and x; q, k, v, z, b and a; or z, x, B, C and
    /// the time step of each head.
    [[nodiscard]] std::size_t mixer_inputs() const noexcept {
        switch (mixer) {
        case layer_mixer::attention:
            return 0;
        case layer_mixer::short_convolution:
            return 3 * hidden_size;
        default:
            return convolved() + mixer_outputs() + recurrence.value_heads * (mixer == layer_mixer::mamba2 ? 1 : 2);
        }
    }
    /// Numbers that its output projection reads.
    [[nodiscard]] std::size_t mixer_outputs() const noexcept {
        return mixer == layer_mixer::attention           ? 0
               : mixer == layer_mixer::short_convolution ? hidden_size
                                                         : recurrence.value_heads * recurrence.value_dim;
    }
    /// Channels of its convolution.
    [[nodiscard]] std::size_t convolved() const noexcept {
        const bool keyed = mixer == layer_mixer::gated_delta || mixer == layer_mixer::mamba2;
        return mixer_outputs() + (keyed ? 2 * recurrence.key_heads * recurrence.key_dim : 0);
    }
    /// Floats of its state: the inputs of the convolution, then (keys, values) of each head.
    [[nodiscard]] std::size_t state_floats() const noexcept {
        if (mixer == layer_mixer::attention)
            return 0;
        return convolved() * (recurrence.taps - 1) + recurrence.value_heads * recurrence.key_dim * recurrence.value_dim;
    }

    /// Checks that the fields are valid and that all products of two extents fit 48 bits. Returns: an error that names
    /// the first invalid field.
    [[nodiscard]] result<void> check() const;
};

namespace detail {

/// Checks the sizes of recurrent layers.
[[nodiscard]] inline result<void> check_recurrence(layer_mixer mixer, const recurrence_config& of) {
    if (mixer == layer_mixer::attention)
        return {};
    if (auto fine = check_extent("recurrence.taps", of.taps, 16); !fine)
        return fine;
    if (mixer == layer_mixer::short_convolution)
        return {};
    const struct {
        std::string_view name;
        std::size_t value, most;
    } sizes[] = {{"recurrence.key_heads", of.key_heads, 1u << 12},
                 {"recurrence.value_heads", of.value_heads, 1u << 12},
                 {"recurrence.key_dim", of.key_dim, 1u << 12},
                 {"recurrence.value_dim", of.value_dim, 1u << 12}};
    for (const auto& [name, value, most] : sizes)
        if (auto fine = check_extent(name, value, most); !fine)
            return fine;
    if (of.value_heads % of.key_heads != 0)
        return error{error_code::mismatched, "recurrence.key_heads",
                     std::to_string(of.value_heads) + " value heads do not share " + std::to_string(of.key_heads) +
                         " key heads evenly"};
    return {};
}

/// Checks the sizes of layer `at`, and those of the layer that it reads.
[[nodiscard]] inline result<void> check_sizes(std::size_t heads, const layer_config& of, std::size_t at,
                                              const layer_config& read) {
    const auto wrong = [&](std::string_view field, std::string_view what) {
        return error{error_code::mismatched, std::string(field), joined({"layer ", std::to_string(at), " ", what})};
    };
    for (const auto& [name, value, most] :
         {std::tuple("head_dim", of.head_dim, std::size_t{1} << 12),
          std::tuple("kv_heads", of.kv_heads, std::size_t{1} << 13),
          std::tuple("intermediate_size", of.intermediate_size, std::size_t{1} << 22)})
        if (auto fine = check_extent(name, value, most); !fine)
            return fine;
    if (of.head_dim % 2 != 0)
        return wrong("head_dim", "has an odd one; RoPE rotates pairs");
    if (heads % of.kv_heads != 0)
        return wrong("kv_heads", "has other KV heads than its heads can share evenly");
    if (of.reads && (*of.reads >= at || read.reads || read.recurrent || of.recurrent || read.window != of.window ||
                     read.head_dim != of.head_dim || read.kv_heads != of.kv_heads))
        return wrong("reads", "reads a layer that is not an earlier one like it with keys and values of its own");
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
        {"layers", layers, most_layers},        {"heads", heads, 1u << 13},
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
    if (rotary_dim > head_dim || rotary_dim % 2 != 0)
        return error{error_code::mismatched, "rotary_dim",
                     "rotary_dim is " + std::to_string(rotary_dim) + "; it must be even and at most head_dim, " +
                         std::to_string(head_dim)};
    if (auto fine = detail::check_rope("rope", rope, rotated(false)); !fine)
        return fine;
    if (window_rope)
        if (auto fine = detail::check_rope("window_rope", *window_rope, rotated(true)); !fine)
            return fine;
    const struct {
        std::string_view name;
        float value, least;
    } factors[] = {{"embedding_scale", embedding_scale, 1e-6F},
                   {"score_scale", score_scale, 0.0F},
                   {"score_cap", score_cap, 0.0F},
                   {"residual_scale", residual_scale, 1e-6F},
                   {"logit_scale", logit_scale, 1e-6F},
                   {"logit_cap", logit_cap, 0.0F},
                   {"gate_alpha", gate_alpha, 1e-6F},
                   {"gate_limit", gate_limit, 1e-6F}};
    for (const auto& [name, value, least] : factors)
        if (auto fine = detail::check_number(name, static_cast<double>(value), static_cast<double>(least), 1e6); !fine)
            return fine;
    if (!each_layer.empty() && each_layer.size() != layers)
        return error{error_code::mismatched, "each_layer",
                     "each_layer describes " + std::to_string(each_layer.size()) + " layers of " +
                         std::to_string(layers)};
    if (experts.count != 0) {
        const struct {
            std::string_view name;
            std::size_t value, most;
        } sizes[] = {{"experts.count", experts.count, 1u << 12},
                     {"experts.used", experts.used, experts.count},
                     {"experts.size", experts.size, 1u << 22}};
        for (const auto& [name, value, most] : sizes)
            if (auto fine = detail::check_extent(name, value, most); !fine)
                return fine;
    }
    if (value_norm && qk_norm == head_norm::none)
        return error{error_code::mismatched, "value_norm", "values are normalized where queries and keys are"};
    if (per_layer_size > (1u << 16))
        return error{error_code::out_of_range, "per_layer_size",
                     "layers have inputs of " + std::to_string(per_layer_size) + " numbers; at most 65536 are read"};
    if (experts.count * layers > most_experts)
        return error{error_code::out_of_range, "experts.count",
                     "all layers together have more than " + std::to_string(most_experts) + " experts"};
    if (auto fine = detail::check_recurrence(mixer, recurrence); !fine)
        return fine;
    for (std::size_t i = 0; i < each_layer.size(); ++i) {
        const layer_config one = layer(i);
        if (auto fine = detail::check_sizes(heads, one, i, one.reads ? layer(std::min(*one.reads, i)) : one); !fine)
            return fine;
        if (one.keys_are_values && qk_norm == head_norm::none)
            return error{error_code::mismatched, "keys_are_values", "keys are values where they are normalized"};
        if (rotary_dim == 0 && one.head_dim != rotated(window_rope && one.window > 0))
            return error{error_code::mismatched, "head_dim", "layers that are rotated alike have heads of one size"};
        if (one.recurrent && mixer == layer_mixer::attention)
            return error{error_code::mismatched, "mixer", "a layer is recurrent, but the model has no such layers"};
        if (one.experts && experts.count == 0)
            return error{error_code::mismatched, "experts.count", "a layer has experts, but there are none"};
        if (one.window > (1u << 30))
            return error{error_code::out_of_range, "window",
                         "a window of " + std::to_string(one.window) + " tokens; it must be below 2^30"};
    }

    for (const token_id token : bos)
        if (index_of(token) < 0)
            return error{error_code::out_of_range, "bos", "a bos id is negative"};
    for (const token_id token : eos)
        if (index_of(token) < 0)
            return error{error_code::out_of_range, "eos", "an eos id is negative"};
    return {};
}

}} // namespace kvcache
