// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/formats/json.hpp>
#include <kvcache/model/architectures/architecture.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/huggingface/json.hpp>
#include <kvcache/model/huggingface/mixer_fields.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Rejects every field that would make the model compute something else than the reference transformer.
KVCACHE_LAZY inline void refuse_foreign_mathematics(json_fields& fields, const architecture& known) {
    const json none;
    for (const std::string_view name : {"quantization_config", "quantization", "compression_config"}) {
        const json* stated = fields.find(name);
        const bool mxfp4 = stated != nullptr && stated->is_object() && stated->contains("quant_method") &&
                           json_fields::says((*stated)["quant_method"], "mxfp4");
        if (!mxfp4 || !known.mxfp4_experts)
            fields.only(name, none, "a quantised checkpoint");
    }
    for (const std::string_view name : {"rotary_pct", "rotary_percentage"})
        fields.only(name, 1, "rotating a part of the head");
    for (const std::string_view name : {"rope_interleave", "rope_interleaved", "rotary_interleaved", "interleaved_rope",
                                        "use_interleaved_rope", "rotary_emb_interleaved"})
        fields.only(name, none, "interleaved rotation");
    fields.only("is_neox_style", true, "interleaved rotation");
    for (const std::string_view name : {"no_rope_layers", "no_rope_layer_interval"})
        if (known.unrotated_period == 0)
            fields.only(name, none, "a layer without rotation");
    for (const std::string_view name : {"nope_layer_interval", "use_nope"})
        fields.only(name, none, "a layer without rotation");
    for (const std::string_view name : {"attn_logit_softcapping", "final_logit_softcapping"})
        if (!known.caps)
            fields.only(name, none, "soft-capping");
    for (const std::string_view name : {"attn_logit_softcap", "final_logit_softcap", "logit_softcapping",
                                        "logits_soft_cap", "logit_soft_cap", "router_logit_softcapping"})
        fields.only(name, none, "soft-capping");
    if (!known.score_scale)
        fields.only("query_pre_attn_scalar", none, "scaling the scores");
    for (const std::string_view name :
         {"softmax_scale", "attention_scale", "attn_scale", "attention_scaling", "attention_temperature",
          "attn_temperature_tuning", "scale_attn_by_inverse_layer_idx", "use_logn_attn", "dim_model_base",
          "scale_depth"})
        fields.only(name, none, "scaling the scores or the stream");
    fields.only("scale_attn_weights", true, "scaling the scores");
    fields.only("attention_factor", 1, "scaling the scores");
    for (const std::string_view name : {"logit_scale", "scale_emb", "lm_head_multiplier"})
        fields.only(name, 1, "scaling the stream");
    if (!known.multipliers) {
        fields.only("attention_multiplier", none, "scaling the scores");
        for (const std::string_view name : {"logits_scaling", "embedding_multiplier", "residual_multiplier"})
            fields.only(name, 1, "scaling the stream");
    }
    for (const std::string_view name : {"num_experts", "num_local_experts"})
        if (known.expert_count == 0)
            fields.only(name, 0, "a mixture of experts");
    fields.only("n_routed_experts", 0, "a mixture of these experts");
    if (known.shared_size == 0)
        fields.only("shared_expert_intermediate_size", 0, "a shared expert");
    for (const std::string_view name : {"kv_lora_rank", "q_lora_rank", "clip_qkv", "alibi", "use_alibi", "use_qk_norm",
                                        "qk_layernorm", "use_qk_layernorm", "parallel_attn", "use_parallel_residual"})
        fields.only(name, none, "another attention");
    for (const std::string_view name :
         {"is_encoder_decoder", "add_cross_attention", "use_bidirectional_attention", "attention_chunk_size"}) {
        const json* stated = fields.find(name);
        if (stated == nullptr || !known.layer_options || !json_fields::says(*stated, "vision")) // which text has not
            fields.only(name, none, "another mask");
    }
    fields.only("is_causal", true, "another mask");
}

/// Reads the factors and caps that the architecture has.
KVCACHE_LAZY inline void read_factors(json_fields& fields, const architecture& known, model_config& config) {
    const auto optional = [&](std::string_view name, double fallback) { // null means off
        return static_cast<float>(fields.number(name, fields.present(name) ? 0.0 : fallback));
    };
    if (known.scaled_embedding)
        config.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
    config.score_scale = static_cast<float>(known.scores_times);
    if (known.score_scale)
        if (const std::size_t scalar = fields.count("query_pre_attn_scalar", 256); scalar != config.head_dim)
            config.score_scale = 1.0F / std::sqrt(static_cast<float>(scalar));
    if (known.caps) {
        config.score_cap = optional("attn_logit_softcapping", known.score_cap);
        config.logit_cap = optional("final_logit_softcapping", known.logit_cap);
    }
    if (known.multipliers) {
        config.embedding_scale = static_cast<float>(fields.number("embedding_multiplier", 1.0));
        config.residual_scale = static_cast<float>(fields.number("residual_multiplier", 1.0));
        config.score_scale = static_cast<float>(fields.number("attention_multiplier", 1.0));
        if (!(config.score_scale > 0.0F)) // 0 stands for head_dim^-0.5
            fields.refuse(error_code::out_of_range, "attention_multiplier", "it must be above 0");
        config.logit_scale = 1.0F / static_cast<float>(fields.number("logits_scaling", 1.0));
    }
}

/// Reads the experts, and which layers have some.
KVCACHE_LAZY [[nodiscard]] inline std::vector<bool> read_experts(json_fields& fields, const architecture& known,
                                                                 model_config& config) {
    std::vector<bool> has(config.layers, false);
    if (known.expert_count == 0)
        return has;
    config.experts.count = fields.count("num_local_experts", fields.count("num_experts", known.expert_count));
    config.experts.used = fields.count("num_experts_per_tok", known.experts_used);
    config.experts.size =
        known.expert_size == 0 ? config.intermediate_size : fields.count("moe_intermediate_size", known.expert_size);
    if (known.joined_mlp) { // whose dense MLP is the shared expert
        config.experts.size = fields.count("intermediate_size", std::nullopt);
        config.experts.shared = config.intermediate_size;
    }
    config.experts.scored_shared = known.scored_shared;
    if (known.shared_size != 0)
        config.experts.shared = fields.count("shared_expert_intermediate_size", known.shared_size);
    config.experts.biased = known.biased_experts;
    config.experts.normalized = known.normalized_experts || fields.flag("norm_topk_prob", known.shared_size != 0);
    const std::size_t step = fields.count("decoder_sparse_step", 1);
    for (std::size_t i = 0; i < config.layers; ++i)
        has[i] = config.experts.count > 0 && step > 0 && (i + 1) % step == 0;
    const json* dense = fields.find("mlp_only_layers");
    if (dense == nullptr)
        return has;
    for (const json& layer : *dense) {
        if (!layer.is_number_unsigned() || layer.get<std::uint64_t>() >= config.layers) {
            fields.refuse(error_code::malformed, "mlp_only_layers", "it must be a list of layers");
            return has;
        }
        has[layer.get<std::size_t>()] = false;
    }
    return has;
}

/// Reads which layers have RoPE.
KVCACHE_LAZY [[nodiscard]] inline std::vector<bool> read_rotated_layers(json_fields& fields, const architecture& known,
                                                                        std::size_t layers) {
    std::vector<bool> all(layers, !known.rope_option || fields.text("position_embedding_type") == "rope");
    if (known.unrotated_period == 0)
        return all;
    const std::size_t period = fields.count("no_rope_layer_interval", known.unrotated_period);
    for (std::size_t i = 0; i < layers; ++i)
        all[i] = period == 0 || (i + 1) % period != 0;
    const json* listed = fields.find("no_rope_layers"); // 1 for a layer that has RoPE
    if (listed == nullptr)
        return all;
    if (!listed->is_array() || listed->size() != layers) {
        fields.refuse(error_code::mismatched, "no_rope_layers", "it must be a list of a number for each layer");
        return all;
    }
    for (std::size_t i = 0; i < layers; ++i)
        all[i] = !same_json((*listed)[i], 0);
    return all;
}

/// Reads which layers have a window, no RoPE, or experts. A window that hides no position below max_position_embeddings
/// is none, unless layers with a window have a rotation of their own.
KVCACHE_LAZY inline void read_layers(json_fields& fields, const architecture& known, model_config& config) {
    // Qwen's window is off unless use_sliding_window is true, whatever its size.
    const bool on = !known.window_switch || fields.flag("use_sliding_window", false);
    if (!known.window_switch)
        fields.only("use_sliding_window", false, "a sliding window");
    const bool stated = fields.present("sliding_window");
    const bool off = !on || (fields.find("sliding_window") == nullptr && (stated || known.window == 0));
    const std::size_t window = off ? config.max_positions : fields.count("sliding_window", known.window);
    if (!off && window == 0)
        fields.refuse(error_code::out_of_range, "sliding_window", "a window has at least one token");
    // A window that hides nothing still tells which layers have the other rotation.
    const bool active = window < config.max_positions || (!off && known.window_theta != 0.0);
    if (active && known.window_period == 0 && !known.window_switch)
        fields.refuse(error_code::unsupported, "sliding_window",
                      {"it is ", std::to_string(window), ", below max_position_embeddings ",
                       std::to_string(config.max_positions), "; this model_type has no sliding window"});
    const std::size_t period = fields.count("sliding_window_pattern", known.window_period);
    const std::size_t unwindowed = known.window_switch ? fields.count("max_window_layers", 28) : 0;
    const json* types = fields.find(fields.present("layers_block_type") ? "layers_block_type" : "layer_types");
    if (types != nullptr && !types->is_array())
        return fields.refuse(error_code::malformed, "layer_types", "it must be a list of texts");
    if (types != nullptr && types->size() != config.layers)
        return fields.refuse(
            error_code::mismatched, "layer_types",
            {"it names ", std::to_string(types->size()), " layers of ", std::to_string(config.layers)});
    if (config.layers > model_config::most_layers)
        return; // check() rejects it
    const std::vector<bool> rotated = read_rotated_layers(fields, known, config.layers);
    const std::vector<bool> experts = read_experts(fields, known, config);
    const std::vector<bool> recurrent = read_recurrent_layers(fields, known, config.layers);
    std::vector<layer_config> all(config.layers);
    bool any = false;
    for (std::size_t i = 0; i < config.layers; ++i) {
        bool has = i >= unwindowed && (period < 2 || (i + 1) % period != 0);
        all[i].recurrent = recurrent[i];
        if (types != nullptr) {
            const json& type = (*types)[i];
            has = json_fields::says(type, "sliding_attention");
            const bool older = known.mixer == layer_mixer::mamba2; // names of before transformers 5
            all[i].recurrent =
                known.mixer != layer_mixer::attention &&
                (json_fields::says(type, recurrent_type(known.mixer)) || (older && json_fields::says(type, "mamba")));
            if (!has && !all[i].recurrent && !json_fields::says(type, "full_attention") &&
                !(older && json_fields::says(type, "attention")))
                return fields.refuse(
                    error_code::unsupported, "layer_types",
                    {json_fields::as_text(type), " is not supported; full_attention and sliding_attention are"});
            if (has && off)
                return fields.refuse(error_code::unsupported, "layer_types",
                                     "a layer has a sliding window, but there is none");
        }
        all[i].window = has && active ? window : 0;
        all[i].rotates = rotated[i];
        all[i].experts = experts[i];
        any = any || all[i] != layer_config{};
    }
    if (any)
        config.each_layer = std::move(all);
}

}}} // namespace kvcache::detail
