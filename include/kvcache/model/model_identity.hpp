// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/core/platform/number_text.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/kernel/rope.hpp>
#include <kvcache/model/config.hpp>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

// The texts that identify what a model computes. Texts of models that a release could read never change, since pages
// are kept under them.

/// What differs from Llama's blocks.
[[nodiscard]] inline std::string blocks_text(const model_config& of) {
    std::string text;
    const auto add = [&](const char* name, float value, float usual) {
        if (value != usual)
            text += joined({", ", name, " ", shortest_text(static_cast<double>(value))});
    };
    add("norms", static_cast<float>(of.norms), 0.0F);
    add("gate", static_cast<float>(of.gate), 0.0F);
    add("norm of all heads", of.qk_norm == head_norm::all ? 1.0F : 0.0F, 0.0F);
    add("experts", static_cast<float>(of.experts.count), 0.0F);
    add("used", static_cast<float>(of.experts.used), 0.0F);
    add("expert size", static_cast<float>(of.experts.size), 0.0F);
    add("shares of", of.experts.normalized ? 1.0F : 0.0F, 0.0F);
    add("shared expert", static_cast<float>(of.experts.shared), 0.0F);
    add("without a score", of.experts.scored_shared ? 0.0F : 1.0F, 0.0F);
    add("rotated", static_cast<float>(of.rotary_dim), 0.0F);
    add("embedding scale", of.embedding_scale, 1.0F);
    add("score scale", of.score_scale, 0.0F);
    add("score cap", of.score_cap, 0.0F);
    add("residual scale", of.residual_scale, 1.0F);
    add("logit scale", of.logit_scale, 1.0F);
    add("logit cap", of.logit_cap, 0.0F);
    add("sinks", of.sinks ? 1.0F : 0.0F, 0.0F);
    if (of.gate == gate_function::clamped_silu)
        text += joined({", clamped ", shortest_text(static_cast<double>(of.gate_alpha)), " ",
                        shortest_text(static_cast<double>(of.gate_limit))});
    add("gated attention", of.gated_attention ? 1.0F : 0.0F, 0.0F);
    add("norm of values", of.value_norm ? 1.0F : 0.0F, 0.0F);
    add("scales of layers", of.layer_scales ? 1.0F : 0.0F, 0.0F);
    add("inputs of layers", static_cast<float>(of.per_layer_size), 0.0F);
    add("mixer", static_cast<float>(of.mixer), 0.0F);
    if (const recurrence_config& rule = of.recurrence; of.mixer != layer_mixer::attention)
        for (const std::size_t size :
             {rule.taps, rule.key_heads, rule.value_heads, rule.key_dim, rule.value_dim, std::size_t{rule.tiled},
              recurrence_config::block_channels}) // with the order of a state's numbers
            text += joined({" ", std::to_string(size)});
    for (std::size_t i = 0; i < of.each_layer.size(); ++i) {
        const layer_config& layer = of.each_layer[i];
        text += joined({i == 0 ? ", windows " : " ", std::to_string(layer.window), layer.rotates ? "" : "n",
                        layer.experts ? "e" : "", layer.recurrent ? "r" : "", layer.keys_are_values ? "k" : ""});
        if (layer.reads)
            text += joined({"of", std::to_string(*layer.reads)});
        for (const std::size_t size : {layer.head_dim, layer.kv_heads, layer.intermediate_size})
            if (size != 0)
                text += joined({"/", std::to_string(size)});
    }
    return text;
}

/// What a model computes, its rotations aside.
[[nodiscard]] inline std::string config_text(const model_config& of) {
    std::string text = of.architecture;
    for (const std::size_t extent :
         {of.hidden_size, of.intermediate_size, of.layers, of.heads, of.kv_heads, of.head_dim, of.vocabulary})
        text += ' ' + std::to_string(extent);
    for (const bool flag : {of.tied_head, of.qkv_bias, of.output_bias, of.mlp_bias, of.qk_norm != head_norm::none})
        text += flag ? " 1" : " 0";
    return text + ' ' + std::to_string(bit_cast<std::uint32_t>(of.rms_norm_eps)) + blocks_text(of);
}

/// The factor of queries and of keys that belongs to a rotation.
[[nodiscard]] inline float rotation_scale(const rope_config& of) noexcept {
    const bool has = of.scaling == rope_config::kind::yarn || of.scaling == rope_config::kind::factors;
    return has ? static_cast<float>(of.attention_factor) : 1.0F;
}

/// A rotation. The words are for people; the digest of the frequencies is decisive.
[[nodiscard]] inline std::string rope_text(const rope_config& of, const rope& made) {
    static constexpr const char* kinds[] = {"none", "linear", "llama3", "factors", "yarn"};
    digest_builder numbers;
    for (const double f : made.frequencies())
        numbers.number(bit_cast<std::uint64_t>(f));
    const float factor = rotation_scale(of) * rotation_scale(of);
    return "theta " + shortest_text(of.theta) + ", scaling " + kinds[static_cast<std::size_t>(of.scaling)] +
           ", frequencies " + to_string(numbers.finish()) +
           (factor == 1.0F ? "" : ", scores times " + shortest_text(static_cast<double>(factor)));
}

/// The rotations of a model: of all layers, and of those with a window if it is another one.
[[nodiscard]] inline std::string ropes_text(const model_config& config, const std::vector<rope>& made) {
    std::string text = rope_text(config.rope, made.front());
    if (config.window_rope)
        text += "; with a window: " + rope_text(*config.window_rope, made.back());
    return text;
}

}}} // namespace kvcache::detail
