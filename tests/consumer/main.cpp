// SPDX-License-Identifier: MIT
#include <kvcache/kvcache.hpp>

#if defined(CONSUMER_READS_JSON)
#include <kvcache/core/json.hpp>
#endif

int main() {
    using namespace kvcache::literals;
    constexpr kvcache::page_shape shape{.layers = 2, .kv_heads = 2, .head_dim = 32, .tokens = 16};
    auto cache = kvcache::make_cache(shape, {.bytes = 1_MiB}, kvcache::lru{});
    const auto sequence = cache.open();
    bool sound = cache.check().has_value();
#if defined(CONSUMER_READS_JSON)
    sound = sound && kvcache::parse_json(R"({"layers": 2})", "config.json").has_value();
#endif
    return sound ? 0 : 1;
}
