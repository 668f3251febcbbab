// SPDX-License-Identifier: MIT
#include <kvcache/cache/handle.hpp>
#include <kvcache/core/platform/standard.hpp>

#include <numeric>
#include <type_traits>
#include <utility>

#include "cache/model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache_test;

namespace {

constexpr kv::page_shape shape{.layers = 1, .kv_heads = 2, .head_dim = 4, .tokens = 16};

[[nodiscard]] auto cache_of(std::size_t pages) {
    return kv::make_cache({shape, {pages * kv::codec::f32{}.open(shape).page_bytes()}});
}

using sequence = decltype(cache_of(0))::sequence;
static_assert(std::is_nothrow_move_constructible_v<sequence> && std::is_nothrow_move_assignable_v<sequence>);
static_assert(!std::is_copy_constructible_v<sequence>);

} // namespace

TEST_CASE("sequences leave in any order") {
    std::vector<std::size_t> order(4);
    std::iota(order.begin(), order.end(), std::size_t{0});
    do {
        auto cache = cache_of(12);
        std::vector<std::optional<sequence>> live;
        past root;
        live.emplace_back(cache.open());
        REQUIRE(append(cache, *live[0], root, counted(0, 24)));
        for (const std::size_t at : {24u, 16u, 9u}) {
            live.emplace_back(live[0]->fork(at));
            past known = root.first(at);
            REQUIRE(append(cache, *live.back(), known, counted(static_cast<std::int32_t>(100 * at), 20)));
        }
        for (const std::size_t one : order) {
            live[one].reset();
            CHECK(cache.check());
        }
        CHECK(cache.stats().in_use == 0);
        CHECK(cache.stats().sequences == 0);
    } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("a sequence that is assigned to releases its pages at once") {
    auto cache = cache_of(8);
    auto a = cache.open(), b = cache.open();
    past one, two;
    REQUIRE(append(cache, a, one, counted(0, 40)));
    REQUIRE(append(cache, b, two, counted(100, 10)));
    CHECK(cache.stats().in_use == 4);
    a = std::move(b);
    CHECK(cache.stats().in_use == 1);
    CHECK(cache.stats().sequences == 1);
    CHECK(kvcache::ranges::equal(a.tokens(), two.tokens));
    auto& same = a;
    a = std::move(same);
    CHECK(rows_hold(cache, a.table(), two.names));
    CHECK(cache.check());
}

TEST_CASE("a fork shares every page and a truncation gives back the tail") {
    auto cache = cache_of(8);
    auto a = cache.open();
    past one;
    REQUIRE(append(cache, a, one, counted(0, 40)));
    for (std::size_t at = 0; at <= 40; ++at) {
        auto b = a.fork(at);
        CHECK(cache.stats().in_use == 3);
        CHECK(b.size() == at);
        CHECK(b.table().size() == (at + 15) / 16);
        b.truncate(at / 2);
        CHECK(rows_hold(cache, b.table(), one.first(at / 2).names));
        CHECK(cache.check());
    }
    a.truncate(17);
    CHECK(a.table().size() == 2);
    CHECK(a.table()[1].count == 1);
    a.truncate(16);
    CHECK(cache.stats().in_use == 1);
    CHECK(cache.stats().evictable == 2);
    a.truncate(0);
    CHECK(cache.stats().in_use == 0);
    CHECK(cache.check());
    CHECK_THROWS_AS(a.truncate(1), kv::contract_violation);
    CHECK_THROWS_AS(a.fork(1), kv::contract_violation);
}

TEST_CASE("a page that another sequence made longer is still right for the shorter one") {
    auto cache = cache_of(8);
    auto a = cache.open();
    past one;
    REQUIRE(append(cache, a, one, counted(0, 10)));
    auto b = a.fork(10);
    past two = one;
    REQUIRE(append(cache, b, two, counted(10, 4))); // its copy replaces a's page in the index
    CHECK(cache.lookup(counted(0, 14)).cached_tokens == 14);
    REQUIRE(append(cache, a, one, counted(50, 4))); // a's page is private again
    CHECK(cache.lookup(one.tokens).cached_tokens == 14);
    CHECK(rows_hold(cache, a.table(), one.names));
    CHECK(rows_hold(cache, b.table(), two.names));
    CHECK(cache.check());
}
