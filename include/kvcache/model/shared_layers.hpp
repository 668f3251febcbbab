// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/weight_names.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Makes the last `count` layers read the keys and values of the last layer before them that has the same window.
/// Returns false if there is none for some. Requires: config.each_layer has all layers.
KVCACHE_LAZY [[nodiscard]] inline bool share_last_layers(model_config& config, std::size_t count) {
    if (count > config.layers)
        return false;
    for (std::size_t i = config.layers - count; i < config.layers; ++i) {
        std::size_t read = config.layers - count;
        while (read > 0 && config.each_layer[read - 1].window != config.each_layer[i].window)
            --read;
        if (read == 0)
            return false;
        config.each_layer[i].reads = read - 1;
        config.each_layer[i].keys_are_values = false;
    }
    return true;
}

/// Names of weights that a file may have for layers which read the keys and values of others, and that nothing uses.
KVCACHE_LAZY [[nodiscard]] inline std::vector<std::string> spare_weights(const model_config& config) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < config.each_layer.size(); ++i)
        if (config.each_layer[i].reads)
            for (const weight_role role : {weight_role::key, weight_role::value, weight_role::key_norm})
                names.push_back(
                    layer_weight_name(i, joined({architecture_of(config).naming(role).huggingface, ".weight"})));
    return names;
}

}}} // namespace kvcache::detail
