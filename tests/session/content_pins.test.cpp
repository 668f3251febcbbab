// SPDX-License-Identifier: MIT
// Content that stays in memory without a sequence: prompts and chunks, within a budget.
#include <kvcache/cache/compose.hpp>
#include <kvcache/chunk/content_pins.hpp>
#include <kvcache/codec/int8.hpp>
#include <kvcache/index/chunk.hpp>
#include <kvcache/recompute/none.hpp>
#include <kvcache/session/chunk_pipeline.hpp>

#include <cstddef>

#include "session/chunk_prompts.hpp"
#include "session/small_model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using small::joined;
using small::some;
using small::tokens;

struct host {
    using cache = kv::cache<kv::index::chunk, kv::recompute::none>;

    host()
        : pool(1),
          held(kv::make_cache({small::model().shape(16), {.pages = 24}, small::model().id({1, 2})},
                              kv::index::chunk{.least = 8}, kv::recompute::none{})),
          pipeline(held, small::model(), pool, {.split = {.size = 0, .least = 8}, .store = false}) {}

    std::size_t exact(const tokens& prompt) { return pipeline.prefill(prompt, kv::reuse_mode::prefix)->counts.exact; }
    std::size_t approximate(const tokens& prompt) {
        return pipeline.prefill(prompt, kv::reuse_mode::chunks)->counts.approximate;
    }
    void flood() { // more than all pages
        for (unsigned seed = 50; seed < 60; ++seed)
            (void)exact(some(100, seed));
    }

    kv::thread_pool pool;
    cache held;
    kv::chunk_pipeline<cache, kv::transformer> pipeline;
};

const tokens prompt = some(80, 1), chunk = some(40, 2), context = some(20, 3), question = some(9, 4);

} // namespace

TEST_CASE("a pinned prompt stays through a flood and a clear, and goes once it is unpinned") {
    host own;
    kv::content_pins pins(own.held, 10);
    CHECK(pins.pin(prompt).error().code == kv::error_code::not_found);
    (void)own.exact(prompt);
    REQUIRE(pins.pin(prompt));
    REQUIRE(pins.pin(prompt)); // no second pin
    CHECK(pins.size() == 1);
    CHECK(pins.pages() == 5);
    own.flood();
    CHECK_FALSE(own.held.clear_all());
    CHECK(own.exact(prompt) == 79);
    CHECK(pins.unpin(prompt));
    CHECK_FALSE(pins.unpin(prompt));
    own.flood();
    CHECK(own.exact(prompt) == 0);
    CHECK(own.held.check());
}

TEST_CASE("a chunk is pinned by its own tokens, with what stands before it") {
    host own;
    kv::content_pins pins(own.held, 10);
    {
        const auto whole = own.pipeline.prefill(joined({context, chunk, question}), kv::reuse_mode::prefix);
        kv::chunk_reuse<host::cache> chunks(own.held);
        REQUIRE(chunks.add(whole->sequence, context.size(), chunk.size()) == chunk.size());
    }
    REQUIRE(pins.pin(chunk));
    CHECK(pins.pages() == 4); // sixty tokens
    own.flood();
    CHECK(own.approximate(joined({question, chunk, question})) == chunk.size());
    pins.clear();
    CHECK(pins.pages() == 0);
    CHECK(own.held.clear_all());
    CHECK(own.approximate(joined({question, chunk, question})) == 0);
    CHECK(own.held.check());
}

TEST_CASE("with a codec of whole pages the whole pages of a chunk are pinned") {
    using cache = kv::cache<kv::index::chunk, kv::recompute::none, kv::codec::int8>;
    auto held = kv::make_cache({small::model().shape(16), {.pages = 24}, small::model().id({1, 2})},
                               kv::index::chunk{.least = 8}, kv::recompute::none{}, kv::codec::int8{});
    kv::thread_pool pool(1);
    kv::chunk_pipeline<cache, kv::transformer> pipeline(held, small::model(), pool, {.split = {.size = 0, .least = 8}});
    kv::content_pins pins(held, 10);
    kv::chunk_reuse<cache> chunks(held);
    CHECK_FALSE(chunks.contains(chunk));
    REQUIRE(pipeline.warm(chunk, {})->chunks == 1); // 40 tokens
    CHECK(chunks.contains(chunk));
    CHECK_FALSE(chunks.contains(joined({question, chunk})));
    CHECK(pins.pin(some(40, 9)).error().code == kv::error_code::not_found); // never cached
    CHECK(pins.pin(some(10, 9)).error().code == kv::error_code::not_found); // less than a page
    CHECK(pins.pin(some(1, 9)).error().code == kv::error_code::not_found);
    REQUIRE(pipeline.prefill(joined({context, question}), kv::reuse_mode::prefix).has_value());
    REQUIRE(pins.pin(joined({context, question}))); // its first 16 tokens
    CHECK(pins.pages() == 1);
    pins.clear();
    REQUIRE(pins.pin(chunk));
    CHECK(pins.pages() >= 2);
    CHECK_FALSE(held.clear_all());
    CHECK(chunks.contains(chunk));
    pins.clear();
    CHECK(held.clear_all());
    CHECK_FALSE(chunks.contains(chunk));
}

TEST_CASE("pins have a budget, in pages that are each counted once") {
    host own;
    kv::content_pins pins(own.held, 7);
    const tokens longer = joined({prompt, some(32, 7)}), other = some(16, 8);
    (void)own.exact(longer);
    (void)own.exact(other);
    REQUIRE(pins.pin(prompt));
    const auto full = pins.pin(joined({prompt, some(32, 7)}));
    REQUIRE(full); // two pages more
    CHECK(pins.pages() == 7);
    const auto refused = pins.pin(other);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().field == "pins");
    CHECK(refused.error().code == kv::error_code::out_of_memory);
    CHECK(pins.refused() == 1);
    CHECK(pins.unpin(prompt));
    CHECK(pins.pages() == 7); // the longer one has them
    CHECK(pins.unpin(longer));
    CHECK(pins.pages() == 0);
    CHECK(pins.pin(other));
}
