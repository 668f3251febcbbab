// SPDX-License-Identifier: MIT
#include <kvcache/cache/acquired.hpp>
#include <kvcache/cache/tenant_cache.hpp>
#include <kvcache/locking/mutex.hpp>

#include <utility>
#include <vector>

#include "cache/model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache_test;

namespace {

constexpr kv::page_shape small{1, 2, 16, 16};
constexpr kv::cache_limits pages(std::size_t n) {
    return {n * sizeof(float) * 2 * 2 * 16 * 16};
}

} // namespace

TEST_CASE("acquire gives what match, plan, open and reserve give") {
    const auto seed = GENERATE(1u, 2u, 3u, 4u);
    CAPTURE(seed);
    seeded draw(seed);
    auto one = kv::make_cache(small, pages(24)), other = kv::make_cache(small, pages(24));
    for (int step = 0; step < 300; ++step) {
        auto prompt = counted(static_cast<std::int32_t>(100 * draw(6)), 1 + draw(90));
        if (draw(3) == 0)
            prompt.back() = kv::token_id{7};
        auto made = one.acquire(prompt);
        auto found = other.match(prompt);
        const auto plan = other.plan(found);
        auto sequence = other.open(std::move(found), plan);
        auto lease = other.reserve(sequence, plan.count);
        REQUIRE(bool(made) == bool(lease));
        REQUIRE(made);
        CHECK(made->lease.first() == plan.first);
        CHECK(made->lease.rows() == plan.count);
        CHECK(made->sequence.size() == plan.first);
        CHECK(one.stats() == other.stats());
        if (draw(5) == 0)
            continue; // both are rolled back
        const auto rest = std::span<const kv::token_id>(prompt).subspan(plan.first);
        made->lease.declare_written();
        lease->declare_written();
        made->lease.commit(rest);
        lease->commit(rest);
        CHECK(made->sequence.size() == prompt.size());
        CHECK(one.stats() == other.stats());
    }
    CHECK(one.check());
}

TEST_CASE("an acquire that fails, and one that is moved over another, leave nothing") {
    auto cache = kv::make_cache(small, pages(5), kv::locking::mutex{});
    const auto before = cache.stats();
    const auto refused = cache.acquire(counted(0, 16 * 6));
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == kv::error_code::out_of_memory);
    CHECK(cache.stats() == before);
    {
        auto made = *cache.acquire(counted(0, 20));
        CHECK(cache.stats().in_use == 2);
        made = *cache.acquire(counted(100, 40)); // the lease over the first is rolled back before its sequence goes
        CHECK(cache.stats().in_use == 3);
        auto moved = std::move(made);
        moved.lease.declare_written();
        moved.lease.commit(counted(100, 40));
    }
    CHECK(cache.match(counted(100, 40)).tokens() == 40);
    CHECK(cache.match(counted(0, 20)).tokens() == 0);
    CHECK(cache.check());
}

TEST_CASE("a tenant acquires its own prompts") {
    auto cache = kv::make_tenant_cache(2, {}, small, pages(20));
    const auto a = *cache.open(kv::tenant_salt("a"), 20), b = *cache.open(kv::tenant_salt("b"), 20);
    const auto prompt = counted(0, 40);
    {
        auto made = a.acquire(prompt);
        REQUIRE(made);
        CHECK(made->lease.rows() == 40);
        made->lease.declare_written();
        made->lease.commit(prompt);
    }
    CHECK((*a.acquire(prompt)).lease.rows() == 1);
    CHECK((*b.acquire(prompt)).lease.rows() == 40);
    CHECK(cache.check());
}
