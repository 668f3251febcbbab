// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/formats/gguf_fields.hpp>
#include <kvcache/model/architectures/architecture.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/gguf/checkpoint.hpp>
#include <kvcache/model/shared_layers.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Reads a number for each layer, from one number for all or, if `size` is not null, from a list. Returns the first
/// one; the others that differ become `size` of their layers.
KVCACHE_LAZY [[nodiscard]] inline std::size_t read_gguf_layer_counts(gguf_fields& fields, const std::string& key,
                                                                     std::size_t layer_config::*size,
                                                                     model_config& config) {
    const gguf_value* value = fields.find(key);
    if (value == nullptr || value->type() != gguf_type::array || size == nullptr ||
        config.layers > model_config::most_layers)
        return fields.count(key, std::nullopt);
    std::vector<std::size_t> counts;
    value->each([&](const gguf_value& one) { counts.push_back(static_cast<std::size_t>(one.count().value_or(0))); });
    if (counts.size() != config.layers || std::find(counts.begin(), counts.end(), std::size_t{0}) != counts.end()) {
        fields.refuse(error_code::mismatched, key, {"it has no number above 0 for each layer"});
        return 0;
    }
    config.each_layer.resize(config.layers);
    for (std::size_t i = 0; i < counts.size(); ++i)
        if (counts[i] != counts.front())
            config.each_layer[i].*size = counts[i];
    return counts.front();
}

/// Reads what layers of Gemma 4 have of their own. Requires: the windows and sizes are read.
KVCACHE_LAZY inline void read_gguf_layer_options(gguf_fields& fields, const gguf_checkpoint& file,
                                                 const architecture& known, model_config& config) {
    if (!known.layer_options)
        return;
    const auto key = [&](std::string_view name) { return joined({known.name, ".", name}); };
    config.each_layer.resize(config.layers);
    config.value_norm = known.value_norm;
    config.layer_scales = true;
    config.per_layer_size = fields.count(key("embedding_length_per_layer_input"), std::size_t{0});
    const std::size_t shared = fields.count(key("attention.shared_kv_layers"), std::size_t{0});
    const std::size_t dim = fields.count(key("attention.key_length"), config.head_dim);
    for (std::size_t i = 0; i < config.layers; ++i) {
        layer_config& one = config.each_layer[i];
        one.head_dim = one.window == 0 ? dim : 0;
        one.keys_are_values =
            one.window == 0 && file.find(joined({"blk.", std::to_string(i), ".attn_v.weight"})) == nullptr;
    }
    if (!share_last_layers(config, shared))
        fields.refuse(error_code::mismatched, key("attention.shared_kv_layers"),
                      {"it is ", std::to_string(shared), " of ", std::to_string(config.layers),
                       " layers; those before have no such layer with keys and values of its own"});
    fields.only(key("rope.dimension_count_swa"), static_cast<double>(config.head_dim), "rotating a part of the head");
}

}}} // namespace kvcache::detail
