// SPDX-License-Identifier: MIT
#include <kvcache/cache/handle.hpp>
#include <kvcache/core/platform/standard.hpp>

#include <utility>

#include "cache/model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache_test;

namespace {

constexpr kv::page_shape shape{.layers = 2, .kv_heads = 2, .head_dim = 4, .tokens = 16};

[[nodiscard]] auto cache_of(std::size_t pages) {
    return kv::make_cache({shape, {pages * kv::codec::f32{}.open(shape).page_bytes()}});
}

[[nodiscard]] std::vector<kv::page_entry> table_of(const auto& sequence) {
    return {sequence.table().begin(), sequence.table().end()};
}

} // namespace

TEST_CASE("a lease that is destroyed leaves the sequence as it was") {
    auto cache = cache_of(8);
    auto a = cache.open();
    past one;
    REQUIRE(append(cache, a, one, counted(0, 20)));
    auto shared = a.fork(20);
    const auto table = table_of(a);
    const auto before = cache.stats();
    {
        const auto lease = cache.reserve(a, 30);
        REQUIRE(lease);
        CHECK(lease->first() == 20);
        CHECK(lease->rows() == 30);
        CHECK(a.table()[1].page != table[1].page); // copied, since `shared` references it
        CHECK(cache.check());
    }
    CHECK(table_of(a) == table);
    CHECK(cache.stats() == before);
    CHECK(rows_hold(cache, a.table(), one.names));
    CHECK(cache.check());
}

TEST_CASE("a lease committed with fewer rows gives the others back") {
    for (const std::size_t kept : {0u, 1u, 5u, 12u, 13u, 29u}) {
        auto cache = cache_of(8);
        auto a = cache.open();
        past one;
        REQUIRE(append(cache, a, one, counted(0, 20)));
        const auto table = table_of(a);
        auto lease = cache.reserve(a, 30);
        REQUIRE(lease);
        for (std::size_t row = 0; row < 30; ++row) {
            one.push(kv::token_id{static_cast<std::int32_t>(100 + row)});
            write_row(*lease, shape, row, one.names.back());
        }
        one.resize(20 + kept);
        lease->commit(std::span<const kv::token_id>(one.tokens).subspan(20));
        CHECK(lease->rows() == 0);
        CHECK(a.size() == 20 + kept);
        CHECK(cache.stats().in_use == (20 + kept + 15) / 16);
        CHECK(rows_hold(cache, a.table(), one.names));
        CHECK(cache.check());
        if (kept == 0)
            CHECK(table_of(a) == table);
    }
}

TEST_CASE("a lease committed with no row keeps the shared page") {
    auto cache = cache_of(8);
    auto a = cache.open();
    past one;
    REQUIRE(append(cache, a, one, counted(0, 10)));
    auto b = a.fork(10);
    const auto table = table_of(b);
    auto lease = cache.reserve(b, 3);
    REQUIRE(lease);
    lease->commit({});
    CHECK(table_of(b) == table);
    CHECK(cache.stats().in_use == 1);
    CHECK(cache.check());
}

TEST_CASE("a lease without rows is a lease") {
    auto cache = cache_of(4);
    auto a = cache.open();
    past one;
    REQUIRE(append(cache, a, one, counted(0, 20)));
    {
        auto lease = cache.reserve(a, 0);
        REQUIRE(lease);
        CHECK_THROWS_AS(cache.reserve(a, 5), kv::contract_violation);
        CHECK_THROWS_AS(a.truncate(3), kv::contract_violation);
        CHECK_THROWS_AS(a.fork(3), kv::contract_violation);
    }
    a.truncate(3);
    CHECK(cache.check());
}

TEST_CASE("a caller's mistakes with a lease are contract violations") {
    auto cache = cache_of(4);
    auto a = cache.open();
    auto lease = cache.reserve(a, 2);
    REQUIRE(lease);
    const std::vector<float> row(8), shorter(7);
    CHECK_NOTHROW(lease->write(kv::layer_id{1}, 1, row, row));
    CHECK_THROWS_AS(lease->write(kv::layer_id{1}, 2, row, row), kv::contract_violation);
    CHECK_THROWS_AS(lease->write(kv::layer_id{2}, 0, row, row), kv::contract_violation);
    CHECK_THROWS_AS(lease->write(kv::layer_id{0}, 0, shorter, row), kv::contract_violation);
    CHECK_THROWS_AS(lease->write(kv::layer_id{0}, 0, row, shorter), kv::contract_violation);
    CHECK_THROWS_AS(lease->commit(counted(0, 3)), kv::contract_violation);
    CHECK_THROWS_AS(lease->commit(counted(0, 1)), kv::contract_violation); // row 0 is not written
    lease->write(kv::layer_id{0}, 0, row, row);
    CHECK_THROWS_AS(lease->commit(counted(0, 1)), kv::contract_violation); // not in layer 1
    lease->write(kv::layer_id{1}, 0, row, row);
    CHECK_THROWS_AS(lease->commit(counted(0, 2)), kv::contract_violation); // row 1 is not written in layer 0
    lease->write(kv::layer_id{0}, 1, row, row);
    lease->commit(counted(0, 2)); // those that were refused have not ended the lease
    CHECK_THROWS_AS(lease->commit(counted(0, 0)), kv::contract_violation);
    CHECK_THROWS_AS(lease->write(kv::layer_id{0}, 0, row, row), kv::contract_violation);
    lease->rollback(); // no effect
    CHECK(a.size() == 2);
    CHECK(cache.check());
}

TEST_CASE("a lease that is assigned to takes back what it had") {
    auto cache = cache_of(8);
    auto a = cache.open(), b = cache.open();
    auto first = cache.reserve(a, 30), second = cache.reserve(b, 10);
    REQUIRE((first && second));
    *first = std::move(*second);
    CHECK(cache.stats().in_use == 1);
    CHECK(first->rows() == 10);
    auto& same = *first;
    *first = std::move(same);
    CHECK(first->rows() == 10);
    first->declare_written();
    first->commit(counted(0, 10));
    CHECK(a.size() == 0);
    CHECK(b.size() == 10);
    CHECK(cache.check());
}

TEST_CASE("a lease stays valid when its sequence object moves") {
    auto cache = cache_of(8);
    auto a = cache.open();
    auto lease = cache.reserve(a, 4);
    REQUIRE(lease);
    auto moved = std::move(a);
    past one;
    for (std::size_t row = 0; row < 4; ++row) {
        one.push(kv::token_id{9});
        write_row(*lease, shape, row, one.names.back());
    }
    lease->commit(one.tokens);
    CHECK(rows_hold(cache, moved.table(), one.names));
    CHECK(cache.check());
}

TEST_CASE("a sequence may be continued with its own tokens") {
    auto cache = cache_of(16);
    auto a = cache.open();
    past one;
    REQUIRE(append(cache, a, one, counted(0, 20)));
    const auto own = a.tokens();
    auto lease = cache.reserve(a, 20);
    REQUIRE(lease);
    lease->declare_written();
    lease->commit(own);
    auto twice = counted(0, 20), more = counted(0, 20);
    twice.insert(twice.end(), more.begin(), more.end());
    CHECK(kvcache::ranges::equal(a.tokens(), twice));
}
