// SPDX-License-Identifier: MIT
#include <kvcache/cache/page_manager.hpp>
#include <kvcache/storage/heap.hpp>
#include <kvcache/testing/fault_injecting.hpp>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("a pool hands out each page once and takes it back") {
    kv::page_pool pool(3, kv::storage::heap{}.open(3, 64));
    const auto a = pool.take(), b = pool.take(), c = pool.take();
    REQUIRE((a && b && c));
    CHECK((*a != *b && *b != *c && *a != *c));
    CHECK_FALSE(pool.take());
    pool.hold(*b);
    CHECK(pool.drop(*b) == 1);
    CHECK(pool.drop(*b) == 0);
    CHECK(pool.free().empty()); // an unreferenced page stays allocated until it is freed
    CHECK_THROWS_AS(pool.drop(*b), kv::contract_violation);
    pool.reclaim(*b);
    CHECK_THROWS_AS(pool.reclaim(*a), kv::contract_violation);
    CHECK(pool.take() == b);
}

TEST_CASE("a page that its storage refuses stays free") {
    kv::page_pool pool(2, kv::testing::fault_injecting_storage<>{.every = 2}.open(2, 64));
    CHECK(pool.take());
    CHECK_FALSE(pool.take());
    CHECK(pool.free().size() == 1);
    CHECK(pool.take());
}
