// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/formats/json.hpp>
#include <kvcache/model/architectures/architecture.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/huggingface/json.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// What RoPE parameters mean by what they do not say.
struct rope_defaults {
    double theta = 10000.0;
    std::size_t max_positions = 0;
    bool may_be_long = false;     ///< LongRoPE is read.
    bool truncates = true;        ///< Of YaRN.
    bool has_sections = false;    ///< Sections of positions in images are there, which are alike in a text.
    std::string layers = {};      ///< The kind of layers, where each has parameters of its own.
    std::size_t proportional = 0; ///< head_dim, if the first pairs alone may be rotated.
};

/// Reads the RoPE parameters of config.json, in either of its forms:
///
///     "rope_theta": 10000.0, "rope_scaling": null or {"type" or "rope_type": ..., ...}      transformers 4
///     "rope_parameters": {"rope_type": ..., "rope_theta": ..., ...}                          transformers 5
///
/// Types other than default, linear, llama3 and yarn, and unknown parameters, are rejected as errors of `top`.
KVCACHE_LAZY [[nodiscard]] inline rope_config read_rope(json_fields& top, const std::string& file,
                                                        const rope_defaults& by) {
    rope_config rope{.theta = by.theta};
    const json* scaling = top.find("rope_scaling");
    const json* parameters = top.find("rope_parameters");
    if (scaling != nullptr && parameters != nullptr && !same_json(*scaling, *parameters)) {
        top.refuse(error_code::mismatched, "rope_scaling", "it and rope_parameters say different things");
        return rope;
    }
    rope.theta = top.number("rope_theta", rope.theta);

    std::string name = parameters != nullptr ? "rope_parameters" : "rope_scaling";
    const json* object = parameters != nullptr ? parameters : scaling;
    if (!by.layers.empty() && object != nullptr && object->is_object() && object->contains(by.layers)) {
        object = &(*object)[by.layers];
        name += joined({".", by.layers});
    }
    if (object == nullptr)
        return rope;
    if (!object->is_object()) {
        top.refuse(error_code::malformed, name, "it must be an object or null");
        return rope;
    }

    json_fields fields(*object, file, name + ".");
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
    else if (type == "yarn")
        rope.scaling = rope_config::kind::yarn;
    else if (by.may_be_long && (type == "longrope" || type == "su")) // its older name
        rope.scaling = rope_config::kind::factors;
    else if (by.proportional != 0 && type == "proportional")
        rope.turning = static_cast<std::size_t>(fields.number("partial_rotary_factor", 1.0) *
                                                static_cast<double>(by.proportional) / 2.0);
    else if (type != "default")
        fields.refuse(error_code::unsupported, type_field,
                      {"\"", shown(type), "\" is not supported; default, linear, llama3 and yarn are"});

    constexpr std::array<std::string_view, 14> known = {"rope_type",
                                                        "type",
                                                        "rope_theta",
                                                        "factor",
                                                        "low_freq_factor",
                                                        "high_freq_factor",
                                                        "original_max_position_embeddings",
                                                        "partial_rotary_factor",
                                                        "attention_factor",
                                                        "beta_fast",
                                                        "beta_slow",
                                                        "truncate",
                                                        "short_factor",
                                                        "long_factor"};
    const bool long_rope = rope.scaling == rope_config::kind::factors, yarn = rope.scaling == rope_config::kind::yarn;
    for (const std::string_view parameter : {"short_factor", "long_factor"})
        if (!long_rope)
            fields.only(parameter, json(), "this parameter of a rotation");
    if (!yarn && !long_rope)
        fields.only("attention_factor", 1, "scaling the scores");
    if (!yarn) {
        for (const std::string_view parameter : {"beta_fast", "beta_slow", "truncate"})
            fields.only(parameter, json(), "this parameter of a rotation");
    }
    for (const auto& item : object->get_ref<const json::object_t&>())
        if (std::find(known.begin(), known.end(), item.first) == known.end() &&
            !(by.has_sections && item.first.starts_with("mrope_")))
            fields.only(item.first, json(), "this parameter of a rotation");

    if (type == "proportional" && rope.turning == by.proportional / 2)
        rope.turning = 0; // all
    else if (type == "proportional" && (rope.turning == 0 || rope.turning > by.proportional / 2))
        fields.refuse(error_code::out_of_range, "partial_rotary_factor", "it must be above 0 and at most 1");
    if (!by.layers.empty() && type != "proportional")
        fields.only("partial_rotary_factor", 1, "rotating a part of the head");
    if (type == "proportional")
        fields.only("factor", 1, "scaling this rotation");

    // Readers disagree on which of the two takes precedence, so they must be equal.
    const double theta = fields.number("rope_theta", rope.theta);
    if (top.find("rope_theta") != nullptr && theta != rope.theta)
        fields.refuse(error_code::mismatched, "rope_theta", "it and the outer rope_theta say different things");
    rope.theta = theta;

    if (rope.scaling != rope_config::kind::none && !long_rope)
        rope.factor = fields.number("factor", std::nullopt);
    if (rope.scaling == rope_config::kind::llama3) {
        rope.low_freq_factor = fields.number("low_freq_factor", std::nullopt);
        rope.high_freq_factor = fields.number("high_freq_factor", std::nullopt);
    }
    if (yarn) {
        rope.beta_fast = fields.number("beta_fast", rope.beta_fast);
        rope.beta_slow = fields.number("beta_slow", rope.beta_slow);
        rope.truncate = fields.flag("truncate", by.truncates);
        rope.attention_factor = fields.number("attention_factor", yarn_attention_factor(rope.factor));
    }
    if (rope.scaling == rope_config::kind::llama3 || yarn || long_rope) {
        const auto outer = top.count("original_max_position_embeddings", by.max_positions);
        const auto inner = fields.count("original_max_position_embeddings", outer);
        if (top.find("original_max_position_embeddings") != nullptr && inner != outer)
            fields.refuse(error_code::mismatched, "original_max_position_embeddings",
                          "it and the outer original_max_position_embeddings say different things");
        rope.original_max_positions = static_cast<double>(inner);
    }
    if (long_rope) {
        // transformers has the short factors for prompts within the original context, so that a token's keys depend on
        // how long its prompt will be. One set for all prompts, that of the context which the model is for.
        const auto most = static_cast<double>(by.max_positions);
        rope.factors = fields.numbers(most > rope.original_max_positions ? "long_factor" : "short_factor");
        const double factor = fields.number("factor", most / std::max(rope.original_max_positions, 1.0));
        rope.attention_factor =
            fields.number("attention_factor", long_rope_attention_factor(factor, rope.original_max_positions));
    }
    if (fields.problem())
        top.refuse(*fields.problem());
    return rope;
}

/// Reads which part of a head is rotated. The field may be an outer one or one of the rotation.
KVCACHE_LAZY inline void read_rotated_part(json_fields& fields, const architecture& known, model_config& config) {
    std::string field = "partial_rotary_factor";
    double part = fields.number(field, known.rotary_part);
    for (const char* name : {"rope_parameters", "rope_scaling"})
        if (const json* inner = fields.find(name); inner != nullptr && inner->is_object() && inner->contains(field)) {
            const json& stated = (*inner)[field];
            field = joined({name, ".", field});
            part = stated.is_number() ? stated.get<double>() : 0.0;
            break;
        }
    if (part == 1.0)
        return;
    if (!known.partial_rope || !(part > 0.0 && part < 1.0))
        return fields.refuse(error_code::unsupported, field,
                             {"rotating a part of the head is not supported; it is ", std::to_string(part)});
    config.rotary_dim = static_cast<std::size_t>(static_cast<double>(config.head_dim) * part);
}

/// Reads the rotations: that of all layers, and that of layers with a window if the architecture has two.
KVCACHE_LAZY inline void read_ropes(json_fields& fields, const std::string& file, const architecture& known,
                                    model_config& config) {
    const bool two = known.window_theta != 0.0;
    if (known.rope_required && fields.find("rope_parameters") == nullptr && fields.find("rope_scaling") == nullptr)
        fields.refuse(error_code::not_found, "rope_parameters", "the field is missing");
    std::size_t dim = config.head_dim; // of layers without a window
    for (const layer_config& one : config.each_layer)
        dim = one.window == 0 && one.head_dim != 0 ? one.head_dim : dim;
    config.rope = read_rope(fields, file,
                            {.theta = known.theta,
                             .max_positions = config.max_positions,
                             .may_be_long = known.long_rope,
                             .truncates = known.yarn_truncates,
                             .has_sections = known.rope_sections,
                             .layers = two ? "full_attention" : "",
                             .proportional = known.layer_options ? dim : 0});
    read_rotated_part(fields, known, config);
    if (!two || config.each_layer.empty())
        return;
    const json* parameters = fields.find("rope_parameters");
    if (parameters != nullptr && parameters->is_object() && parameters->contains("sliding_attention"))
        config.window_rope = read_rope(
            fields, file,
            {.theta = known.window_theta, .max_positions = config.max_positions, .layers = "sliding_attention"});
    else
        config.window_rope = rope_config{.theta = fields.number(known.window_theta_field, known.window_theta)};
}

}}} // namespace kvcache::detail
