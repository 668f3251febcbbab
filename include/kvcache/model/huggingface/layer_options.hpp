// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/formats/json.hpp>
#include <kvcache/model/architectures/architecture.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/huggingface/json.hpp>
#include <kvcache/model/shared_layers.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Reads "per_layer_config": an object of layers' sizes, by their number.
KVCACHE_LAZY inline void read_layer_sizes(json_fields& fields, const std::string& file, const json& listed,
                                          model_config& config) {
    if (!listed.is_object())
        return fields.refuse(error_code::malformed, "per_layer_config", "it must be an object");
    for (std::size_t i = 0; i < config.layers; ++i) {
        const std::string name = std::to_string(i);
        if (!listed.contains(name))
            continue;
        const std::string field = joined({"per_layer_config.", name});
        if (!listed[name].is_object())
            return fields.refuse(error_code::malformed, field, "it must be an object");
        json_fields own(listed[name], file, field + ".");
        config.each_layer[i].head_dim = own.count("head_dim", std::size_t{0});
        config.each_layer[i].kv_heads = own.count("num_key_value_heads", std::size_t{0});
        for (const auto& item : listed[name].get_ref<const json::object_t&>())
            if (item.first != "head_dim" && item.first != "num_key_value_heads")
                own.only(item.first, json(), "this field of one layer");
        if (own.problem())
            return fields.refuse(*own.problem());
    }
}

/// Reads what layers of Gemma 4 have of their own. Requires: the windows are read.
KVCACHE_LAZY inline void read_layer_options(json_fields& fields, const std::string& file, const architecture& known,
                                            model_config& config) {
    if (!known.layer_options || config.layers > model_config::most_layers)
        return;
    fields.only("enable_moe_block", false, "experts besides an MLP");
    config.each_layer.resize(config.layers);
    config.value_norm = known.value_norm;
    config.layer_scales = true;
    config.per_layer_size =
        fields.count("hidden_size_per_layer_input", fields.present("hidden_size_per_layer_input") ? 0 : 256);
    if (const std::size_t rows = fields.count("vocab_size_per_layer_input", 262144);
        config.per_layer_size != 0 && rows != config.vocabulary)
        fields.refuse(error_code::unsupported, "vocab_size_per_layer_input",
                      {"it is ", std::to_string(rows), ", and the vocabulary has ", std::to_string(config.vocabulary)});
    const bool values = fields.flag("attention_k_eq_v", false);
    if (const json* listed = fields.find("per_layer_config")) {
        read_layer_sizes(fields, file, *listed, config);
    } else {
        const std::size_t dim = fields.count("global_head_dim", 512);
        const std::size_t heads = values ? fields.count("num_global_key_value_heads", std::size_t{0}) : 0;
        for (layer_config& one : config.each_layer)
            if (one.window == 0)
                one.head_dim = dim, one.kv_heads = heads;
    }
    for (layer_config& one : config.each_layer)
        one.keys_are_values = values && one.window == 0;
    const std::size_t shared = fields.count("num_kv_shared_layers", std::size_t{0});
    if (!share_last_layers(config, shared))
        fields.refuse(error_code::mismatched, "num_kv_shared_layers",
                      {"it is ", std::to_string(shared), " of ", std::to_string(config.layers),
                       " layers; those before have no such layer with keys and values of its own"});
    if (fields.flag("use_double_wide_mlp", false))
        for (layer_config& one : config.each_layer)
            one.intermediate_size = one.reads ? 2 * config.intermediate_size : 0;
}

}}} // namespace kvcache::detail
