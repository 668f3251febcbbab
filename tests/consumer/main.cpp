// SPDX-License-Identifier: MIT
#include <kvcache/kvcache.hpp>

#if defined(CONSUMER_READS_JSON)
#include <kvcache/core/json.hpp>
#endif

#if defined(CONSUMER_READS_TRACES)
#include <kvcache/adapters/replay/object_replay.hpp>
#include <kvcache/adapters/traces/lirs_trace.hpp>
#endif

#if defined(CONSUMER_HAS_A_KEY)
#include <kvcache/hash/sha256.hpp>
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
#if defined(CONSUMER_READS_TRACES)
    kvcache::lirs_trace trace(kvcache::byte_source::over("1\n2\n1\n", "blocks"));
    kvcache::object_replay<kvcache::lru> replay({}, 2, 2);
    for (kvcache::object_access access; *trace.next(access);)
        replay.run(access);
    sound = sound && replay.counts().hits == 1;
#endif
#if defined(CONSUMER_HAS_A_KEY)
    auto keyed = kvcache::make_cache(shape, {.bytes = 1_MiB}, kvcache::sha256{.key = "secret"});
    const auto first = kvcache::sha256{.key = "secret"}.open({}), other = kvcache::sha256{.key = "other"}.open({});
    sound = sound && keyed.check().has_value() && first.root() != other.root();
#endif
    return sound ? 0 : 1;
}
