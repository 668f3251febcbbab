// SPDX-License-Identifier: MIT
#include <kvcache/kvcache.hpp>

#if defined(CONSUMER_READS_JSON)
#include <kvcache/core/json.hpp>
#endif

int main() {
    constexpr kvcache::page_shape shape{.layers = 2, .kv_heads = 2, .head_dim = 32, .tokens = 16};
    kvcache::matrix weights = kvcache::matrix::Zero(2, 3);
    kvcache::row_of(weights, 1)[2] = 1.0f;
    bool sound = shape.valid() && weights(1, 2) == 1.0f;
#if defined(CONSUMER_READS_JSON)
    sound = sound && kvcache::parse_json(R"({"layers": 2})", "config.json").has_value();
#endif
    return sound ? 0 : 1;
}
