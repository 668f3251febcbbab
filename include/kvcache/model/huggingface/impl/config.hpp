// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/formats/json.hpp>
#include <kvcache/model/architectures/all.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/huggingface/config.hpp>
#include <kvcache/model/huggingface/json.hpp>
#include <kvcache/model/huggingface/layer_fields.hpp>
#include <kvcache/model/huggingface/layer_options.hpp>
#include <kvcache/model/huggingface/mixer_fields.hpp>
#include <kvcache/model/huggingface/rope_fields.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

/// Returns the entry for "model_type", checked against "architectures".
KVCACHE_LAZY [[nodiscard]] inline const architecture* architecture_in(json_fields& fields) {
    const auto model_type = fields.text("model_type");
    if (!model_type) {
        fields.refuse(error_code::not_found, "model_type", "the field is missing");
        return nullptr;
    }
    const auto* known = ranges::find(known_architectures, *model_type, &architecture::model_type);
    if (known == std::end(known_architectures)) {
        fields.refuse(error_code::unsupported, "model_type",
                      {"\"", shown(*model_type), "\" is not supported; ",
                       list_of_architectures(&architecture::model_type), " are"});
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

/// Checks that the activation is the architecture's.
KVCACHE_LAZY inline void check_activation(json_fields& fields, const architecture& known) {
    const bool silu = known.gate != gate_function::gelu;
    const auto is_known = [&](std::string_view name) {
        if (silu)
            return name == "silu" || name == "swish"; // the same function in transformers
        return name == "gelu_pytorch_tanh" || (known.gelu_is_tanh && name == "gelu");
    };
    for (const std::string_view field : {"hidden_act", "hidden_activation"}) {
        const auto name = fields.text(field);
        if (name && !is_known(*name))
            fields.refuse(error_code::unsupported, field,
                          {"\"", shown(*name), "\" is not supported; ", silu ? "silu" : "gelu_pytorch_tanh", " is"});
    }
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
        {"embedding_scale", "embedding_multiplier"},
        {"residual_scale", "residual_multiplier"},
        {"logit_scale", "logits_scaling"},
        {"score_scale", "attention_multiplier"},
        {"score_cap", "attn_logit_softcapping"},
        {"logit_cap", "final_logit_softcapping"},
        {"experts.count", "num_local_experts"},
        {"experts.used", "num_experts_per_tok"},
        {"experts.size", "moe_intermediate_size"},
        {"window", "sliding_window"},
        {"gate_alpha", "swiglu_alpha"},
        {"gate_limit", "swiglu_limit"},
        {"recurrence.taps", "linear_conv_kernel_dim"},
        {"recurrence.key_heads", "linear_num_key_heads"},
        {"recurrence.value_heads", "linear_num_value_heads"},
        {"recurrence.key_dim", "linear_key_head_dim"},
        {"recurrence.value_dim", "linear_value_head_dim"},
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
    const architecture* known = architecture_in(fields);
    if (known == nullptr)
        return *fields.problem();

    model_config config;
    config.architecture = known->name;
    config.hidden_size = fields.count("hidden_size", std::nullopt);
    config.intermediate_size = read_intermediate_size(fields, *known);
    config.layers = fields.count("num_hidden_layers", std::nullopt);
    config.heads = fields.count("num_attention_heads", std::nullopt);
    config.vocabulary = fields.count("vocab_size", std::nullopt);
    // An absent number of KV heads has the type's default, but null means one for each head.
    const bool own_heads = known->kv_heads == 0 || fields.present("num_key_value_heads");
    config.kv_heads = fields.count("num_key_value_heads", own_heads ? config.heads : known->kv_heads);
    config.max_positions = fields.count("max_position_embeddings", known->max_positions);
    const double eps = fields.number(known->eps_field, known->eps);
    config.rms_norm_eps = eps > 0 && eps < 1 ? static_cast<float>(eps) : 0.0F; // check() rejects 0

    const bool explicit_head_dim = fields.find("head_dim") != nullptr || known->head_dim != 0;
    if (!explicit_head_dim && config.heads != 0 && config.hidden_size % config.heads != 0)
        fields.refuse(error_code::mismatched, "num_attention_heads",
                      {"hidden_size ", std::to_string(config.hidden_size), " does not divide by ",
                       std::to_string(config.heads), ", and head_dim is absent"});
    const std::size_t even_share = config.heads == 0 ? 0 : config.hidden_size / config.heads;
    config.head_dim = fields.count("head_dim", known->head_dim != 0 ? known->head_dim : even_share);

    config.tied_head =
        fields.flag(fields.present("tie_embedding") ? "tie_embedding" : "tie_word_embeddings", known->tied_head);
    const bool attention_bias = fields.flag("attention_bias", known->bias_default);
    const bool mlp_bias = fields.flag("mlp_bias", false);
    config.qkv_bias = known->qkv_bias || (known->bias_option && attention_bias);
    config.output_bias = known->bias_option && attention_bias;
    config.mlp_bias = known->mlp_bias_option && mlp_bias;
    config.qk_norm = known->qk_norm;
    config.norms = known->norms;
    config.gate = known->gate;
    if (attention_bias && !config.qkv_bias)
        fields.refuse(error_code::unsupported, "attention_bias", "this model_type has none");
    if (mlp_bias && !config.mlp_bias)
        fields.refuse(error_code::unsupported, "mlp_bias", "this model_type has none");

    config.sinks = known->sinks;
    if (known->gate == gate_function::clamped_silu) {
        config.gate_alpha = static_cast<float>(fields.number("swiglu_alpha", 1.702));
        config.gate_limit = static_cast<float>(fields.number("swiglu_limit", 7.0));
    }
    check_activation(fields, *known);
    refuse_foreign_mathematics(fields, *known);
    read_factors(fields, *known, config);
    read_recurrence(fields, *known, config);
    read_layers(fields, *known, config);
    read_layer_options(fields, file, *known, config);
    read_ropes(fields, file, *known, config);
    config.bos = fields.ids("bos_token_id");
    config.eos = fields.ids("eos_token_id");
    if (known->bos >= 0 && !fields.present("bos_token_id"))
        config.bos = {token_id{known->bos}};

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

/// The configuration of the text model of a multimodal one, with what is said for all; else the whole.
KVCACHE_LAZY [[nodiscard]] inline json text_model_in(const json& text) {
    if (!text.is_object() || !text.contains("text_config") || !text["text_config"].is_object())
        return text;
    json own = text["text_config"];
    for (const char* shared : {"tie_word_embeddings", "bos_token_id", "eos_token_id", "quantization_config"})
        if (!own.contains(shared) && text.contains(shared))
            own[shared] = text[shared];
    own.erase("architectures"); // as of the whole, if at all
    return own;
}

} // namespace detail

KVCACHE_BODY result<model_config> read_model_config(const std::filesystem::path& directory) {
    constexpr std::size_t limit = 1u << 20; // a hundred times the largest known file
    const auto text = read_json(directory / "config.json", limit);
    if (!text)
        return text.error();
    const json own = detail::text_model_in(*text);
    auto config = detail::parse_model_config(own, (directory / "config.json").string());
    if (!config)
        return config;

    const auto generation = directory / "generation_config.json";
    bool stated = own.contains("eos_token_id");
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
    // The default of the architecture if neither file has the field.
    if (const std::int32_t eos = find_architecture(config->architecture)->eos; !stated && eos >= 0)
        config->eos = {token_id{eos}};
    return config;
}

}} // namespace kvcache
