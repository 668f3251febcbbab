// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/formats/gguf_fields.hpp>
#include <kvcache/model/architectures/architecture.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/gguf/checkpoint.hpp>
#include <kvcache/model/gguf/layer_keys.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Reads the number of KV heads. A list has 0 for each recurrent layer, and for the others one number. Marks those
/// layers.
KVCACHE_LAZY inline void read_gguf_kv_heads(gguf_fields& fields, const std::string& key, const architecture& known,
                                            model_config& config) {
    const gguf_value* value = fields.find(key);
    const bool listed = value != nullptr && value->type() == gguf_type::array && value->size() == config.layers;
    if (known.layer_options) {
        config.kv_heads = read_gguf_layer_counts(fields, key, &layer_config::kv_heads, config);
        return;
    }
    if (known.mixer == layer_mixer::attention || !listed) {
        config.kv_heads = fields.count(key, config.heads);
        return;
    }
    config.each_layer.resize(config.layers);
    std::size_t layer = 0;
    value->each([&](const gguf_value& heads) {
        const auto count = static_cast<std::size_t>(heads.count().value_or(0));
        config.each_layer[layer++].recurrent = count == 0;
        if (config.kv_heads != 0 && count != 0 && count != config.kv_heads)
            fields.refuse(error_code::unsupported, key, {"it differs from layer to layer"});
        config.kv_heads = std::max(config.kv_heads, count);
    });
}

/// Marks the recurrent layers of a list with a bool for each layer. Returns whether there is one.
KVCACHE_LAZY inline bool read_gguf_recurrent_layers(gguf_fields& fields, const std::string& key, model_config& config) {
    const gguf_value* value = fields.find(key);
    if (value == nullptr)
        return false;
    std::vector<layer_config> layers;
    bool flags = value->type() == gguf_type::array;
    if (flags)
        value->each([&](const gguf_value& one) {
            flags = flags && one.flag().has_value();
            layers.push_back({.recurrent = one.flag().value_or(false)});
        });
    if (flags && layers.size() == config.layers)
        config.each_layer = std::move(layers);
    else
        fields.refuse(error_code::mismatched, key, {"it has no true or false for each layer"});
    return true;
}

/// Reads the sizes of recurrent layers, and which layers are, where the KV heads do not say it.
KVCACHE_LAZY inline void read_gguf_mixers(gguf_fields& fields, const gguf_checkpoint& file, const architecture& known,
                                          model_config& config) {
    const std::string prefix = joined({known.name, "."});
    const auto has = [&](std::string_view tensor) {
        for (std::size_t i = 0; i < config.layers; ++i)
            if (file.find(joined({"blk.", std::to_string(i), tensor})) != nullptr)
                return true;
        return false;
    };
    config.gated_attention = known.gated_attention;
    config.mixer = known.mixer;
    recurrence_config& of = config.recurrence;
    const auto count = [&](std::string_view name) { return fields.count(joined({prefix, name}), std::nullopt); };
    if (known.mixer == layer_mixer::short_convolution)
        of.taps = count("shortconv.l_cache");
    if (known.rope_option) {
        const bool rotates = fields.flag(joined({prefix, "rope.scaling.finetuned"}), false);
        config.each_layer.resize(config.layers);
        for (layer_config& layer : config.each_layer)
            layer.rotates = rotates;
    }
    if (known.mixer != layer_mixer::gated_delta && known.mixer != layer_mixer::mamba2)
        return;
    of = {.taps = count("ssm.conv_kernel"),
          .key_heads = count("ssm.group_count"),
          .value_heads = count("ssm.time_step_rank"),
          .key_dim = count("ssm.state_size"),
          .biased = has(".ssm_conv1d.bias"),
          .joined_heads = known.joined_heads && has(".ssm_in.weight"),
          .joined_rates = known.joined_heads,
          .tiled = known.tiled_values};
    const std::size_t values = count("ssm.inner_size");
    if (of.value_heads == 0 || values % of.value_heads != 0)
        return fields.refuse(error_code::mismatched, joined({prefix, "ssm.inner_size"}),
                             {"it is ", std::to_string(values), ", which ", std::to_string(of.value_heads),
                              " heads do not share evenly"});
    of.value_dim = values / of.value_heads;
    if (of.key_heads == 1 || of.key_heads == of.value_heads)
        of.tiled = false; // the two orders are the same
    if (known.mixer == layer_mixer::mamba2)
        return;
    (void)fields.find(joined({prefix, "rope.dimension_sections"})); // of images: alike in a text
    const std::size_t period = fields.count(joined({prefix, "full_attention_interval"}), known.attention_period);
    if (read_gguf_recurrent_layers(fields, joined({prefix, "attention.recurrent_layers"}), config) ||
        !config.each_layer.empty())
        return;
    config.each_layer.resize(config.layers);
    for (std::size_t i = 0; i < config.layers; ++i)
        config.each_layer[i].recurrent = period == 0 || (i + 1) % period != 0;
}

}}} // namespace kvcache::detail
