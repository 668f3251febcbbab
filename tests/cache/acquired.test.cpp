// SPDX-License-Identifier: MIT
#include <kvcache/cache.hpp>
#include <kvcache/cache/handle.hpp>
#include <kvcache/locking/mutex.hpp>
#include <kvcache/observer/counting.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "cache/matching.hpp"
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
    auto one = kv::make_cache({small, pages(24)}), other = kv::make_cache({small, pages(24)});
    for (int step = 0; step < 300; ++step) {
        auto prompt = counted(static_cast<std::int32_t>(100 * draw(6)), 1 + draw(90));
        if (draw(3) == 0)
            prompt.back() = kv::token_id{7};
        auto made = one.acquire(prompt);
        auto found = match_in(other, prompt);
        const auto plan = plan_of(other, found);
        auto sequence = open_at(other, std::move(found), plan);
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
    auto cache = kv::make_cache({small, pages(5)}, kv::locking::mutex{});
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
    CHECK(cache.lookup(counted(100, 40)).cached_tokens == 40);
    CHECK(cache.lookup(counted(0, 20)).cached_tokens == 0);
    CHECK(cache.check());
}

TEST_CASE("a tenant acquires its own prompts") {
    auto cache = kv::make_cache({.shape = small, .limit = pages(20), .tenants = 2});
    const auto a = *view_of(cache, "a", 20), b = *view_of(cache, "b", 20);
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

TEST_CASE("a prefix that another lease computes is pending until the lease ends") {
    auto cache = kv::make_cache({small, {.pages = 64}});
    const auto common = counted(0, 100);
    auto own = common;
    own.push_back(kv::token_id{-5});
    const kv::acquire_options refuse{.pending = kv::pending_prefix::refuse};
    CHECK(cache.lookup(common).pending_tokens == 0);
    {
        auto first = cache.acquire(common, refuse);
        REQUIRE(first);
        CHECK(cache.lookup(common).pending_tokens == 96); // whole pages
        CHECK(cache.lookup(counted(0, 40)).pending_tokens == 32);
        CHECK(cache.lookup(counted(1, 40)).pending_tokens == 0);
        const auto second = cache.acquire(own, refuse);
        REQUIRE_FALSE(second);
        CHECK(second.error().code == kv::error_code::pending);
        CHECK(cache.stats().in_use == 7);
        CHECK(cache.acquire(own)); // both compute it
        CHECK(cache.acquire(counted(1, 40), refuse));
    } // rolled back
    CHECK(cache.lookup(common).pending_tokens == 0);
    auto first = cache.acquire(common, refuse);
    REQUIRE(first);
    first->lease.declare_written();
    first->lease.commit(common);
    CHECK(cache.lookup(common).pending_tokens == 0);
    auto second = cache.acquire(own, refuse);
    REQUIRE(second);
    CHECK(second->lease.first() == 100);

    auto more = cache.reserve(first->sequence, 40); // by reserve: nothing is known of its tokens
    REQUIRE(more);
    CHECK(cache.lookup(counted(0, 140)).pending_tokens == 96); // those that the second has, which are cached
    CHECK(cache.check());
}

TEST_CASE("what a sequence may not share is not pending, and neither is another tenant's") {
    auto cache = kv::make_cache({small, {.pages = 64}});
    const auto prompt = counted(0, 100);
    auto limited = cache.acquire(prompt);
    REQUIRE(limited);
    limited->sequence.set_cacheable_limit(40);
    CHECK(cache.lookup(prompt).pending_tokens == 32);

    auto tenants = kv::make_cache({.shape = small, .limit = kv::cache_limits{.pages = 64}, .tenants = 2});
    const auto ann = *view_of(tenants, "ann", 64), bob = *view_of(tenants, "bob", 64);
    const auto hers = ann.acquire(prompt);
    REQUIRE(hers);
    CHECK(ann.lookup(prompt).pending_tokens == 96);
    CHECK(bob.lookup(prompt).pending_tokens == 0);
    CHECK(bob.acquire(prompt, {.pending = kv::pending_prefix::refuse}));
}

TEST_CASE("a page that ends at the limit of what may be shared is shared") {
    auto cache = kv::make_cache({small, {.pages = 64}});
    const auto prompt = counted(0, 100);
    auto limited = cache.acquire(prompt);
    REQUIRE(limited);
    limited->sequence.set_cacheable_limit(48);
    limited->lease.declare_written();
    limited->lease.commit(prompt);
    CHECK(cache.lookup(prompt).cached_tokens == 48);
}

TEST_CASE("without a locking that can wait, to wait is to be refused") {
    auto cache = kv::make_cache({small, {.pages = 64}});
    const auto prompt = counted(0, 100);
    const auto first = cache.acquire(prompt);
    const auto second = cache.acquire(prompt, {.pending = kv::pending_prefix::wait});
    REQUIRE_FALSE(second);
    CHECK(second.error().code == kv::error_code::pending);
}

TEST_CASE("of prompts that arrive together the first computes the common prefix and the others wait for it") {
    for (const bool first_fails : {false, true}) {
        auto cache = kv::make_cache({small, {.pages = 256}}, kv::locking::mutex{}, kv::observer::counting{});
        constexpr std::size_t threads = 6;
        std::atomic<std::size_t> computed{0}, waiting{0};
        std::atomic<bool> failed{!first_fails};
        std::vector<std::thread> all;
        for (std::size_t thread = 0; thread < threads; ++thread)
            all.emplace_back([&, thread] {
                auto prompt = counted(0, 160);
                prompt.push_back(kv::token_id{-1 - static_cast<std::int32_t>(thread)});
                ++waiting;
                while (true) {
                    auto made = cache.acquire(prompt, {.pending = kv::pending_prefix::wait});
                    if (!made)
                        return;
                    if (made->lease.first() == 0) {
                        while (waiting < threads)
                            std::this_thread::yield();
                        std::this_thread::sleep_for(std::chrono::milliseconds(20)); // the others come to wait
                    }
                    if (!failed.exchange(true))
                        continue; // the lease is rolled back: another thread computes it
                    computed += made->lease.rows();
                    made->lease.declare_written();
                    made->lease.commit(std::span<const kv::token_id>(prompt).subspan(made->lease.first()));
                    return;
                }
            });
        for (std::thread& one : all)
            one.join();
        CHECK(computed == 160 + threads);
        // One look-up each, and one for each lease that ended: none waits in a loop.
        cache.with_observer([](const auto& seen) { CHECK(seen.counts().lookups <= threads * (threads + 2)); });
        CHECK(cache.check());
    }
}
