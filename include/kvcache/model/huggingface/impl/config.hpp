// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/formats/json.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/huggingface/config.hpp>
#include <kvcache/model/huggingface/json.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

/// Reads the RoPE parameters of config.json, in either of its forms:
///
///     "rope_theta": 10000.0, "rope_scaling": null or {"type" or "rope_type": ..., ...}      transformers 4
///     "rope_parameters": {"rope_type": ..., "rope_theta": ..., ...}                          transformers 5
///
/// Types other than default, linear and llama3, and unknown parameters, are rejected as errors of `top`.
KVCACHE_LAZY [[nodiscard]] inline rope_config read_rope(json_fields& top, const std::string& file,
                                                        std::size_t max_positions) {
    rope_config rope;
    const json* scaling = top.find("rope_scaling");
    const json* parameters = top.find("rope_parameters");
    if (scaling != nullptr && parameters != nullptr && !same_json(*scaling, *parameters)) {
        top.refuse(error_code::mismatched, "rope_scaling", "it and rope_parameters say different things");
        return rope;
    }
    rope.theta = top.number("rope_theta", rope.theta);

    const std::string_view name = parameters != nullptr ? "rope_parameters" : "rope_scaling";
    const json* object = parameters != nullptr ? parameters : scaling;
    if (object == nullptr)
        return rope;
    if (!object->is_object()) {
        top.refuse(error_code::malformed, name, "it must be an object or null");
        return rope;
    }

    json_fields fields(*object, file, std::string(name) + ".");
    const auto spelled = fields.text("rope_type");
    const auto older = fields.text("type");
    const std::string type = spelled.value_or(older.value_or("default"));
    const std::string_view type_field = spelled || !older ? "rope_type" : "type";
    if (spelled && older && *spelled != *older)
        fields.refuse(error_code::mismatched, "type", "it and rope_type say different things");
    if (!spelled && !older && (fields.find("factor") != nullptr || fields.present("rope_type")))
        fields.refuse(error_code::not_found, "rope_type", "the field is missing");

    if (type == "linear")
        rope.scaling = rope_config::kind::linear;
    else if (type == "llama3")
        rope.scaling = rope_config::kind::llama3;
    else if (type != "default")
        fields.refuse(error_code::unsupported, type_field,
                      {"\"", shown(type), "\" is not supported; default, linear and llama3 are"});

    constexpr std::array<std::string_view, 9> known = {"rope_type",
                                                       "type",
                                                       "rope_theta",
                                                       "factor",
                                                       "low_freq_factor",
                                                       "high_freq_factor",
                                                       "original_max_position_embeddings",
                                                       "partial_rotary_factor",
                                                       "attention_factor"};
    fields.only("partial_rotary_factor", 1, "rotating a part of the head");
    fields.only("attention_factor", 1, "scaling the scores");
    for (const auto& item : object->get_ref<const json::object_t&>())
        if (std::find(known.begin(), known.end(), item.first) == known.end())
            fields.only(item.first, json(), "this parameter of a rotation");

    // Readers disagree on which of the two takes precedence, so they must be equal.
    const double theta = fields.number("rope_theta", rope.theta);
    if (top.find("rope_theta") != nullptr && theta != rope.theta)
        fields.refuse(error_code::mismatched, "rope_theta", "it and the outer rope_theta say different things");
    rope.theta = theta;

    if (rope.scaling != rope_config::kind::none)
        rope.factor = fields.number("factor", std::nullopt);
    if (rope.scaling == rope_config::kind::llama3) {
        rope.low_freq_factor = fields.number("low_freq_factor", std::nullopt);
        rope.high_freq_factor = fields.number("high_freq_factor", std::nullopt);
        const auto outer = top.count("original_max_position_embeddings", max_positions);
        const auto inner = fields.count("original_max_position_embeddings", outer);
        if (top.find("original_max_position_embeddings") != nullptr && inner != outer)
            fields.refuse(error_code::mismatched, "original_max_position_embeddings",
                          "it and the outer original_max_position_embeddings say different things");
        rope.original_max_positions = static_cast<double>(inner);
    }
    if (fields.problem())
        top.refuse(*fields.problem());
    return rope;
}

/// Defaults of a model_type where config.json has no value. 0: derived from other fields.
struct huggingface_architecture {
    std::string_view model_type;
    std::string_view class_name;
    std::size_t kv_heads = 0;      ///< Default num_key_value_heads; 0: the number of heads.
    std::size_t head_dim = 0;      ///< Default head_dim; 0: hidden_size / heads.
    std::size_t max_positions = 0; ///< Default max_position_embeddings.
    std::size_t window = 0;        ///< Default sliding_window; 0: none.
    bool bos_and_eos = false;      ///< Absent ids default to 1 and 2.
    bool bias_option = false;      ///< attention_bias applies to q, k, v and o.
    bool qkv_bias = false;         ///< q, k and v always have a bias.
    bool mlp_bias_option = false;
    bool qk_norm = false;
};

/// Defaults of transformers 5.23, the same as those of 4.x for these types.
inline constexpr huggingface_architecture huggingface_architectures[] = {
    {.model_type = "llama",
     .class_name = "LlamaForCausalLM",
     .max_positions = 2048,
     .bos_and_eos = true,
     .bias_option = true,
     .mlp_bias_option = true},
    {.model_type = "mistral",
     .class_name = "MistralForCausalLM",
     .kv_heads = 8,
     .max_positions = 131072,
     .window = 4096,
     .bos_and_eos = true},
    {.model_type = "qwen2", .class_name = "Qwen2ForCausalLM", .kv_heads = 32, .max_positions = 32768, .qkv_bias = true},
    {.model_type = "qwen3",
     .class_name = "Qwen3ForCausalLM",
     .kv_heads = 32,
     .head_dim = 128,
     .max_positions = 32768,
     .bias_option = true,
     .qk_norm = true},
};

/// Returns the entry for "model_type", checked against "architectures".
KVCACHE_LAZY [[nodiscard]] inline const huggingface_architecture* find_architecture(json_fields& fields) {
    const auto model_type = fields.text("model_type");
    if (!model_type) {
        fields.refuse(error_code::not_found, "model_type", "the field is missing");
        return nullptr;
    }
    const auto* known = ranges::find(huggingface_architectures, *model_type, &huggingface_architecture::model_type);
    if (known == std::end(huggingface_architectures)) {
        fields.refuse(error_code::unsupported, "model_type",
                      {"\"", shown(*model_type), "\" is not supported; llama, mistral, qwen2 and qwen3 are"});
        return nullptr;
    }
    if (const json* classes = fields.find("architectures")) {
        const auto runs = [&](const json& name) {
            // spelling of the first Llama 1 conversions
            return json_fields::says(name, known->class_name) ||
                   (known->model_type == "llama" && json_fields::says(name, "LLaMAForCausalLM"));
        };
        if (!classes->is_array())
            fields.refuse(error_code::malformed, "architectures", "it must be a list of class names");
        else if (!classes->empty() && std::none_of(classes->begin(), classes->end(), runs))
            fields.refuse(
                error_code::unsupported, "architectures",
                {json_fields::as_text(*classes), " is not supported; ", known->class_name, " is, for this model_type"});
    }
    return known;
}

/// Rejects every field that would make the model compute something else than the reference transformer.
KVCACHE_LAZY inline void refuse_foreign_mathematics(json_fields& fields) {
    const json none;
    for (const std::string_view name : {"quantization_config", "quantization", "compression_config"})
        fields.only(name, none, "a quantised checkpoint");
    for (const std::string_view name : {"partial_rotary_factor", "rotary_pct", "rotary_percentage"})
        fields.only(name, 1, "rotating a part of the head");
    for (const std::string_view name : {"rope_interleave", "rope_interleaved", "rotary_interleaved", "interleaved_rope",
                                        "use_interleaved_rope", "rotary_emb_interleaved"})
        fields.only(name, none, "interleaved rotation");
    fields.only("is_neox_style", true, "interleaved rotation");
    for (const std::string_view name : {"no_rope_layers", "no_rope_layer_interval", "nope_layer_interval", "use_nope"})
        fields.only(name, none, "a layer without rotation");
    for (const std::string_view name :
         {"attn_logit_softcapping", "final_logit_softcapping", "attn_logit_softcap", "final_logit_softcap",
          "logit_softcapping", "logits_soft_cap", "logit_soft_cap", "router_logit_softcapping"})
        fields.only(name, none, "soft-capping");
    for (const std::string_view name :
         {"attention_multiplier", "query_pre_attn_scalar", "softmax_scale", "attention_scale", "attn_scale",
          "attention_scaling", "attention_temperature", "attn_temperature_tuning", "scale_attn_by_inverse_layer_idx",
          "use_logn_attn", "dim_model_base", "scale_depth"})
        fields.only(name, none, "scaling the scores or the stream");
    fields.only("scale_attn_weights", true, "scaling the scores");
    fields.only("attention_factor", 1, "scaling the scores");
    for (const std::string_view name : {"logit_scale", "logits_scaling", "embedding_multiplier", "residual_multiplier",
                                        "scale_emb", "lm_head_multiplier"})
        fields.only(name, 1, "scaling the stream");
    for (const std::string_view name : {"num_experts", "num_local_experts", "n_routed_experts"})
        fields.only(name, 0, "a mixture of experts");
    for (const std::string_view name : {"kv_lora_rank", "q_lora_rank", "clip_qkv", "alibi", "use_alibi", "use_qk_norm",
                                        "qk_layernorm", "use_qk_layernorm", "parallel_attn", "use_parallel_residual"})
        fields.only(name, none, "another attention");
    for (const std::string_view name :
         {"is_encoder_decoder", "add_cross_attention", "use_bidirectional_attention", "attention_chunk_size"})
        fields.only(name, none, "another mask");
    fields.only("is_causal", true, "another mask");
}

/// Rejects a sliding window that hides any position below max_position_embeddings.
KVCACHE_LAZY inline void refuse_active_window(json_fields& fields, const huggingface_architecture& known,
                                              const model_config& config) {
    if (fields.flag("use_sliding_window", false))
        fields.refuse(error_code::unsupported, "use_sliding_window", "a sliding window is not supported");
    if (const json* types = fields.find("layer_types")) {
        if (!types->is_array()) {
            fields.refuse(error_code::malformed, "layer_types", "it must be a list of texts");
            return;
        }
        for (const json& type : *types)
            if (!json_fields::says(type, "full_attention"))
                fields.refuse(error_code::unsupported, "layer_types",
                              {json_fields::as_text(type), " is not supported; full_attention is"});
        if (types->size() != config.layers)
            fields.refuse(error_code::mismatched, "layer_types",
                          {"it names ", std::to_string(types->size()), " layers of ", std::to_string(config.layers)});
    }
    // Qwen's window is off unless use_sliding_window is true, whatever its size.
    if (known.model_type == "qwen2" || known.model_type == "qwen3")
        return;
    const bool stated = fields.present("sliding_window");
    if (fields.find("sliding_window") == nullptr && (stated || known.window == 0))
        return;
    const std::size_t window = fields.count("sliding_window", known.window);
    if (window < config.max_positions)
        fields.refuse(error_code::unsupported, "sliding_window",
                      {stated ? "it is " : "it is absent, which means ", std::to_string(window),
                       ", below max_position_embeddings ", std::to_string(config.max_positions),
                       "; a sliding window is not supported"});
}

/// Maps a field name of model_config::check() to its name in config.json.
KVCACHE_LAZY [[nodiscard]] inline std::string huggingface_field(const std::string& field,
                                                                const std::string& rope_prefix) {
    constexpr std::pair<std::string_view, std::string_view> names[] = {
        {"layers", "num_hidden_layers"},
        {"heads", "num_attention_heads"},
        {"kv_heads", "num_key_value_heads"},
        {"vocabulary", "vocab_size"},
        {"max_positions", "max_position_embeddings"},
        {"rope.theta", "rope_theta"},
        {"bos", "bos_token_id"},
        {"eos", "eos_token_id"},
    };
    for (const auto& [ours, theirs] : names)
        if (field == ours)
            return std::string(theirs);
    if (field == "rope.original_max_positions")
        return rope_prefix + "original_max_position_embeddings";
    return field.starts_with("rope.") ? rope_prefix + field.substr(5) : field;
}

/// Converts the parsed config.json; `file` is its name in errors.
KVCACHE_LAZY [[nodiscard]] inline result<model_config> parse_model_config(const json& text, const std::string& file) {
    if (!text.is_object())
        return error{error_code::malformed, "config.json", detail::joined({file, ": it must be a JSON object"})};
    json_fields fields(text, file, "");
    const huggingface_architecture* known = find_architecture(fields);
    if (known == nullptr)
        return *fields.problem();

    model_config config;
    config.architecture = known->model_type;
    config.hidden_size = fields.count("hidden_size", std::nullopt);
    config.intermediate_size = fields.count("intermediate_size", std::nullopt);
    config.layers = fields.count("num_hidden_layers", std::nullopt);
    config.heads = fields.count("num_attention_heads", std::nullopt);
    config.vocabulary = fields.count("vocab_size", std::nullopt);
    // An absent number of KV heads has the type's default, but null means one for each head.
    const bool own_heads = known->kv_heads == 0 || fields.present("num_key_value_heads");
    config.kv_heads = fields.count("num_key_value_heads", own_heads ? config.heads : known->kv_heads);
    config.max_positions = fields.count("max_position_embeddings", known->max_positions);
    const double eps = fields.number("rms_norm_eps", 1e-6);
    config.rms_norm_eps = eps > 0 && eps < 1 ? static_cast<float>(eps) : 0.0F; // check() rejects 0

    const bool explicit_head_dim = fields.find("head_dim") != nullptr || known->head_dim != 0;
    if (!explicit_head_dim && config.heads != 0 && config.hidden_size % config.heads != 0)
        fields.refuse(error_code::mismatched, "num_attention_heads",
                      {"hidden_size ", std::to_string(config.hidden_size), " does not divide by ",
                       std::to_string(config.heads), ", and head_dim is absent"});
    const std::size_t even_share = config.heads == 0 ? 0 : config.hidden_size / config.heads;
    config.head_dim = fields.count("head_dim", known->head_dim != 0 ? known->head_dim : even_share);

    config.tied_head = fields.flag("tie_word_embeddings", false);
    const bool attention_bias = fields.flag("attention_bias", false);
    const bool mlp_bias = fields.flag("mlp_bias", false);
    config.qkv_bias = known->qkv_bias || (known->bias_option && attention_bias);
    config.output_bias = known->bias_option && attention_bias;
    config.mlp_bias = known->mlp_bias_option && mlp_bias;
    config.qk_norm = known->qk_norm;
    if (attention_bias && !config.qkv_bias)
        fields.refuse(error_code::unsupported, "attention_bias", "this model_type has none");
    if (mlp_bias && !config.mlp_bias)
        fields.refuse(error_code::unsupported, "mlp_bias", "this model_type has none");

    // Both names are the same function in transformers.
    const auto activation = fields.text("hidden_act").value_or("silu");
    if (activation != "silu" && activation != "swish")
        fields.refuse(error_code::unsupported, "hidden_act", {"\"", shown(activation), "\" is not supported; silu is"});

    refuse_foreign_mathematics(fields);
    refuse_active_window(fields, *known, config);
    config.rope = read_rope(fields, file, config.max_positions);
    config.bos = fields.ids("bos_token_id");
    config.eos = fields.ids("eos_token_id");
    if (known->bos_and_eos && !fields.present("bos_token_id"))
        config.bos = {token_id{1}};

    if (fields.problem())
        return *fields.problem();
    if (const auto fine = config.check(); !fine) {
        const auto& reason = fine.error();
        const std::string prefix = text.contains("rope_parameters") && !text["rope_parameters"].is_null()
                                       ? "rope_parameters."
                                       : "rope_scaling.";
        const std::string field = huggingface_field(reason.field, prefix);
        return error{reason.code, field, detail::joined({file, ": ", field, ": ", reason.message})};
    }
    return config;
}

} // namespace detail

KVCACHE_BODY result<model_config> read_model_config(const std::filesystem::path& directory) {
    constexpr std::size_t limit = 1u << 20; // a hundred times the largest known file
    const auto text = read_json(directory / "config.json", limit);
    if (!text)
        return text.error();
    auto config = detail::parse_model_config(*text, (directory / "config.json").string());
    if (!config)
        return config;

    const auto generation = directory / "generation_config.json";
    bool stated = text->contains("eos_token_id");
    std::error_code ignored;
    if (std::filesystem::exists(generation, ignored)) {
        const auto more = read_json(generation, limit);
        if (!more)
            return more.error();
        if (!more->is_object())
            return error{error_code::malformed, "generation_config.json",
                         detail::joined({generation.string(), ": it must be a JSON object"})};
        detail::json_fields fields(*more, generation.string(), "");
        const auto ids = fields.ids("eos_token_id");
        if (fields.problem())
            return *fields.problem();
        stated = stated || !ids.empty();
        for (const token_id id : ids)
            if (ranges::find(config->eos, id) == config->eos.end())
                config->eos.push_back(id);
    }
    // The default of the llama and mistral configurations if neither file has the field.
    if (!stated && (config->architecture == "llama" || config->architecture == "mistral"))
        config->eos = {token_id{2}};
    return config;
}

}} // namespace kvcache
