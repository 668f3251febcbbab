// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/json.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/huggingface/fields.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

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

}}} // namespace kvcache::detail
