// SPDX-License-Identifier: MIT
#include <kvcache/cache/handle.hpp>
#include <kvcache/eviction/lru.hpp>

#include <cstddef>
#include <utility>

#include "cache/matching.hpp"
#include "cache/model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache_test;

namespace {

constexpr kv::page_shape shape{.layers = 1, .kv_heads = 1, .head_dim = 4, .tokens = 16};

[[nodiscard]] auto cache_of(std::size_t pages) {
    return kv::make_cache({shape, {pages * kv::codec::f32{}.open(shape).page_bytes()}});
}

// lru that counts its touches.
struct counting_lru {
    using role = kv::eviction_role;
    std::size_t* touches = nullptr;

    struct state : decltype(kv::eviction::lru{}.open({})) {
        using base = decltype(kv::eviction::lru{}.open({}));
        state(base made, std::size_t* counter) : base(std::move(made)), counter_(counter) {}
        void touch(kv::slot_id slot) {
            ++*counter_;
            base::touch(slot);
        }

    private:
        std::size_t* counter_;
    };
    [[nodiscard]] state open(kv::eviction_capacity capacity) const {
        return {kv::eviction::lru{}.open(capacity), touches};
    }
};

} // namespace

TEST_CASE("a match is a use of its pages, unless it says that it is none") {
    std::size_t touches = 0;
    auto cache =
        kv::make_cache({shape, {8 * kv::codec::f32{}.open(shape).page_bytes()}}, counting_lru{.touches = &touches});
    {
        auto a = cache.open();
        past one;
        REQUIRE(append(cache, a, one, counted(0, 32)));
    }
    touches = 0;
    CHECK(match_in(cache, counted(0, 40)).tokens() == 32);
    CHECK(touches == 2);
    const auto prompt = counted(0, 40);
    CHECK(cache.core().match_in_memory(0, prompt, {.touches = false}).sequence.size() == 32);
    CHECK(touches == 2);
    CHECK(cache.check());
}

TEST_CASE("a match ends at any token and explains why") {
    auto cache = cache_of(8);
    CHECK(cache.lookup(counted(0, 5)).explain() == "0 of 5 tokens known; nothing is stored after them");
    auto a = cache.open();
    past one;
    REQUIRE(append(cache, a, one, counted(0, 20)));

    CHECK(cache.lookup({}).explain() == "0 of 0 tokens known");
    CHECK(cache.lookup(counted(0, 20)).explain() == "20 of 20 tokens known");
    CHECK(cache.lookup(counted(0, 7)).explain() == "7 of 7 tokens known"); // inside a page
    CHECK(cache.lookup(counted(0, 25)).explain() == "20 of 25 tokens known; nothing is stored after them");
    for (const std::size_t at : {0u, 3u, 15u, 16u, 19u}) {
        auto tokens = counted(0, 20);
        tokens[at] = kv::token_id{999};
        const auto found = match_in(cache, tokens);
        CHECK(found.tokens() == at);
        CHECK(found.found.prompt_tokens == 20);
        CHECK(found.found.end == kv::match_end::different);
        CHECK(found.found.differing_token == kv::token_id{static_cast<std::int32_t>(at)});
        CHECK(found.found.explain() == std::to_string(at) + " of 20 tokens known; token " + std::to_string(at) +
                                           " differs from the one stored (" + std::to_string(at) + ")");
    }
}

TEST_CASE("a match pins its pages until it is dropped") {
    auto cache = cache_of(3);
    {
        auto a = cache.open();
        past one;
        REQUIRE(append(cache, a, one, counted(0, 32)));
    }
    auto b = cache.open();
    {
        const auto pinned = match_in(cache, counted(0, 20));
        CHECK(cache.stats().in_use == 2);
        CHECK(cache.stats().sequences == 2);
        CHECK_FALSE(cache.reserve(b, 20));
        CHECK(cache.check());
    }
    CHECK(cache.stats().in_use == 0);
    CHECK(cache.reserve(b, 48));
    CHECK(cache.check());
}

TEST_CASE("a full hit is planned to run its last token") {
    auto cache = cache_of(8);
    auto a = cache.open();
    past one;
    REQUIRE(append(cache, a, one, counted(0, 20)));
    auto found = match_in(cache, counted(0, 20));
    const auto plan = plan_of(cache, found);
    CHECK(plan.first == 19);
    CHECK(plan.count == 1);
    auto b = open_at(cache, std::move(found), plan);
    CHECK(b.size() == 19);
    past two = one.first(19);
    REQUIRE(append(cache, b, two, counted(19, 1)));
    CHECK(rows_hold(cache, b.table(), one.names));
    CHECK(cache.check());
}
