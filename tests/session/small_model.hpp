// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/id.hpp>
#include <kvcache/testing/random_weights.hpp>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace small {

/// Two layers, and six query heads over two KV heads: enough for grouped queries and for dependent layers.
inline kvcache::model_config config() {
    return {.hidden_size = 48,
            .intermediate_size = 80,
            .layers = 2,
            .heads = 6,
            .kv_heads = 2,
            .head_dim = 24,
            .vocabulary = 131,
            .max_positions = 4096,
            .rope = {},
            .tied_head = true,
            .bos = {},
            .eos = {}};
}

/// Like config, with another number of layers.
inline kvcache::model_config config_of(std::size_t layers) {
    kvcache::model_config made = config();
    made.layers = layers;
    return made;
}

/// The model of that configuration, with the same weight bits in every build.
inline const kvcache::transformer& model() {
    static const kvcache::transformer made = kvcache::make_random_model(config(), 7);
    return made;
}

/// Random tokens of its vocabulary, uniformly distributed.
inline std::vector<kvcache::token_id> some(std::size_t count, unsigned seed) {
    std::mt19937 dice(seed);
    std::vector<kvcache::token_id> made;
    for (; count > 0; --count)
        made.push_back(kvcache::token_id{static_cast<std::int32_t>(dice() % config().vocabulary)});
    return made;
}

} // namespace small
