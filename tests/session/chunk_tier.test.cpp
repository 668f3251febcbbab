// SPDX-License-Identifier: MIT
// Approximate pages never reach a tier: neither by splicing, nor by extending a spliced sequence, nor from a fork.
#include <kvcache/cache/compose.hpp>
#include <kvcache/index/chunk.hpp>
#include <kvcache/recompute/chunk_head.hpp>
#include <kvcache/session/chunk_pipeline.hpp>
#include <kvcache/tier.hpp>
#include <kvcache/tier/memory.hpp>

#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "cache/matching.hpp"
#include "session/chunk_prompts.hpp"
#include "session/small_model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using small::joined;
using small::tokens;
using cache = kv::cache<kv::index::chunk, kv::recompute::chunk_head, kv::tier::memory<>>;

using small::some;

} // namespace

TEST_CASE("a tier is given exact pages alone, and gives them back with the bits of a cold run") {
    const kv::transformer& model = small::model();
    kv::thread_pool pool(1);
    auto store = kv::make_cache(
        {model.shape(16), {.bytes = 40 * kv::codec::f32{}.open(model.shape(16)).page_bytes()}, model.id({1, 2})},
        kv::index::chunk{.least = 8}, kv::recompute::chunk_head{.rows = 4, .page_aligned = false},
        kv::tier::memory<>{});
    kv::chunk_pipeline<cache, kv::transformer> pipeline(store, model, pool, {.split = {.size = 48, .least = 8}});
    const tokens a = some(45, 1), b = some(33, 2), c = some(48, 3), gap = some(7, 5), question = some(9, 4);
    for (const tokens& one : {a, b, c})
        REQUIRE(pipeline.warm(one, {})->chunks == 1);

    const tokens prompt = joined({a, gap, c, b, question}), more = some(40, 8), whole = joined({prompt, more});
    std::size_t exact = 0;
    {
        auto filled = pipeline.prefill(prompt, kv::reuse_mode::chunks);
        REQUIRE(filled.has_value());
        REQUIRE(filled->counts.approximate > 0);
        exact = filled->sequence.exact();
        REQUIRE(pipeline.exact().extend(filled->sequence, more).has_value());
        auto fork = filled->sequence.fork(prompt.size());
        REQUIRE(pipeline.exact().extend(fork, more).has_value());
    }
    for (unsigned seed = 20; seed < 26; ++seed) // other prompts, until all of its pages are evicted from memory
        REQUIRE(pipeline.prefill(some(200, seed), kv::reuse_mode::prefix).has_value());
    REQUIRE(kv::tier_stats_of(store).handed_over > 0);
    {
        const auto found = kvcache_test::match_in(store, whole);
        CHECK(found.found.loaded_tokens == exact / 16 * 16);
        CHECK(found.tokens() == exact / 16 * 16);
    }
    const auto again = pipeline.prefill(whole, kv::reuse_mode::prefix),
               cold = pipeline.prefill(whole, kv::reuse_mode::baseline);
    REQUIRE(again.has_value());
    REQUIRE(cold.has_value());
    CHECK(again->counts.exact == exact / 16 * 16);
    CHECK(std::memcmp(again->logits.data(), cold->logits.data(),
                      static_cast<std::size_t>(cold->logits.size()) * sizeof(float)) == 0);
    CHECK(store.check().has_value());
}
