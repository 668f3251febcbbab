// SPDX-License-Identifier: MIT
#if defined(CONSUMER_READS_JSON)

#include <kvcache/formats/json.hpp>
#include <kvcache/text/regex.hpp>
#include <kvcache/text/unicode.hpp>

int main() {
    const auto parsed = kvcache::parse_json(R"({"layers": 2})", "config.json");
    const auto digits = kvcache::text::regex::open("\\d+", "pattern");
    int found = 0;
    const bool searched = digits && digits->each_match("1, 22", [&](std::size_t, std::size_t) { ++found; });
    return parsed && searched && found == 2 && kvcache::text::is_punctuation(U'\u00a1') ? 0 : 1;
}

#elif defined(KVCACHE_DECLARATIONS)

#include <kvcache/kvcache.hpp>

#include <vector>

// A product, which another file of the program defines: a matrix of ones sums the numbers of a row.
int main() {
    const std::vector<float> ones(40, 1.0f), x(40, 0.5f);
    std::vector<float> y(24);
    kvcache::packed_matrix<float> sums(24, 40);
    for (std::size_t output = 0; output < 24; ++output)
        sums.set_row(output, ones);
    kvcache::thread_pool alone(1);
    kvcache::gemm({x.data(), 1, 40}, sums, {y.data(), 24}, alone);
    return y == std::vector<float>(24, 20.0f) ? 0 : 1;
}

#elif defined(CONSUMER_HAS_A_KEY)

#include <kvcache/cache/compose.hpp>
#include <kvcache/hash/sha256.hpp>

int main() {
    using namespace kvcache::literals;
    constexpr kvcache::page_shape shape{.layers = 2, .kv_heads = 2, .head_dim = 32, .tokens = 16};
    auto keyed =
        kvcache::make_cache({.shape = shape, .limit = {.bytes = 1_MiB}}, kvcache::hash::sha256{.key = "secret"});
    const auto first = kvcache::hash::sha256{.key = "secret"}.open({}),
               other = kvcache::hash::sha256{.key = "other"}.open({});
    return keyed.check() && first.root() != other.root() ? 0 : 1;
}

#elif defined(CONSUMER_HAS_THE_CACHE)

#include <kvcache/cache.hpp>
#if __has_include(<kvcache/eviction/lru.hpp>) // the single header has them all
#include <kvcache/cache/block_tables.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/locking/mutex.hpp>
#endif

#include <cstdlib>
#include <cstring>

int main() {
    using namespace kvcache::literals;
    constexpr kvcache::page_shape shape{.layers = 2, .kv_heads = 2, .head_dim = 32, .tokens = 16};
    auto cache = kvcache::make_cache({.shape = shape, .limit = {.bytes = 1_MiB}}, kvcache::eviction::lru{},
                                     kvcache::locking::mutex{});
    auto sequence = cache.open();
    auto lease = cache.reserve(sequence, 1);
    const float row[64] = {};
    if (!lease)
        return 1;
    for (const auto layer : {kvcache::layer_id{0}, kvcache::layer_id{1}})
        lease->write(layer, 0, row, row);
    const kvcache::token_id token{7};
    lease->commit({&token, 1});
    kvcache::block_tables tables(16);
    tables.append(sequence.table());
    if (tables.last_page_len().front() != 1)
        return 1;
    if (cache.lookup({&token, 1}).cached_tokens != 1 || !cache.check())
        return 1;
    // Without exceptions a violated contract ends in the handler.
    kvcache::set_violation_handler(
        [](const char* rule) { std::_Exit(std::strcmp(rule, "a lease is committed once") == 0 ? 0 : 1); });
    lease->commit({&token, 1});
    return 1;
}

#elif defined(CONSUMER_IS_COMPILED)

#include <kvcache/kernel/gemm.hpp>
#include <kvcache/text/tokenizer.hpp>

int main() {
    kvcache::thread_pool alone;
    const float x = 2.0f, weight[] = {3.0f};
    float y = 0.0f;
    kvcache::packed_matrix<float> w(1, 1);
    w.set_row(0, weight);
    kvcache::gemm({&x, 1, 1}, w, {&y, 1}, alone);
    return y == 6.0f && !kvcache::tokenizer::open("no such directory") ? 0 : 1;
}

#else

#include <kvcache/kvcache.hpp>

int main() {
    using namespace kvcache::literals;
    constexpr kvcache::page_shape shape{.layers = 2, .kv_heads = 2, .head_dim = 32, .tokens = 16};
    auto cache = kvcache::make_cache({.shape = shape, .limit = {.bytes = 1_MiB}}, kvcache::eviction::lru{});
    const auto sequence = cache.open();
    return cache.check() ? 0 : 1;
}

#endif
