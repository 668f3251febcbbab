// SPDX-License-Identifier: MIT
// What is approximate never reaches a tier: neither by weaving, nor by going on from it, nor from a fork.
#include <kvcache/cache/compose.hpp>
#include <kvcache/index/chunk.hpp>
#include <kvcache/recompute/head.hpp>
#include <kvcache/session/chunk_pipeline.hpp>
#include <kvcache/tier/memory.hpp>

#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "session/small_model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using tokens = std::vector<kv::token_id>;
using cache = kv::cache<kv::chunk, kv::head, kv::memory<>>;

using small::some;

tokens joined(std::initializer_list<tokens> parts) {
    tokens all;
    for (const tokens& part : parts)
        all.insert(all.end(), part.begin(), part.end());
    return all;
}

} // namespace

TEST_CASE("a tier is given exact pages alone, and gives them back with the bits of a cold run") {
    const kv::transformer& model = small::model();
    kv::team team(1);
    auto store = kv::make_cache(model.shape(16), {.bytes = 40 * kv::plain{}.open(model.shape(16)).page_bytes()},
                                kv::chunk{.least = 8}, kv::head{.rows = 4, .page_aligned = false}, kv::memory<>{});
    kv::chunk_pipeline<cache, kv::transformer> through(store, model, team, {.split = {.size = 48, .least = 8}});
    const tokens a = some(45, 1), b = some(33, 2), c = some(48, 3), gap = some(7, 5), question = some(9, 4);
    for (const tokens& one : {a, b, c})
        REQUIRE(through.warm(one, {})->chunks == 1);

    const tokens prompt = joined({a, gap, c, b, question}), more = some(40, 8), whole = joined({prompt, more});
    std::size_t exact = 0;
    {
        auto fed = through.feed(prompt, kv::reuse_mode::chunks);
        REQUIRE(fed.has_value());
        REQUIRE(fed->counts.approximate > 0);
        exact = fed->sequence.exact();
        REQUIRE(through.exact().extend(fed->sequence, more).has_value());
        auto fork = fed->sequence.fork(prompt.size());
        REQUIRE(through.exact().extend(fork, more).has_value());
    }
    for (unsigned seed = 20; seed < 26; ++seed) // strangers, until nothing of it is in memory
        REQUIRE(through.feed(some(200, seed), kv::reuse_mode::prefix).has_value());
    REQUIRE(store.tier_stats().handed_over > 0);
    {
        const auto found = store.match(whole);
        CHECK(found.loaded() == exact / 16 * 16);
        CHECK(found.tokens() == exact / 16 * 16);
    }
    const auto again = through.feed(whole, kv::reuse_mode::prefix),
               cold = through.feed(whole, kv::reuse_mode::baseline);
    REQUIRE(again.has_value());
    REQUIRE(cold.has_value());
    CHECK(again->counts.exact == exact / 16 * 16);
    CHECK(std::memcmp(again->logits.data(), cold->logits.data(),
                      static_cast<std::size_t>(cold->logits.size()) * sizeof(float)) == 0);
    CHECK(store.check().has_value());
}
