// SPDX-License-Identifier: MIT
//
// Threads that run freely over one cache with a mutex: what ThreadSanitizer watches (./dev check).
#include <kvcache/cache/tenant_cache.hpp>
#include <kvcache/eviction/cost_aware.hpp>
#include <kvcache/locking/mutex.hpp>
#include <kvcache/observer/counting.hpp>

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "cache/model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache_test;

namespace {

constexpr kv::page_shape small{.layers = 2, .kv_heads = 2, .head_dim = 4, .tokens = 16};
constexpr std::uint64_t workers = 4;

[[nodiscard]] kv::cache_limits pages(std::size_t n) {
    return {n * kv::codec::f32{}.open(small).page_bytes()};
}

/// Prompts with common prefixes, reused, continued, forked, truncated and dropped at random. Counts errors.
template <class Cache>
int use(Cache& cache, std::uint64_t seed, int rounds) {
    seeded choose(seed);
    int wrong = 0;
    std::optional<typename Cache::sequence> kept; // for some rounds, while other pages are evicted
    past of_kept;
    for (int round = 0; round < rounds; ++round) {
        auto tokens = counted(static_cast<std::int32_t>(choose(3)), 4 + choose(60));
        for (std::size_t n = choose(20) + 1; n > 0; --n)
            tokens.push_back(kv::token_id{static_cast<std::int32_t>(choose(2))});
        past all;
        for (const kv::token_id token : tokens)
            all.push(token);
        auto found = cache.match(tokens);
        if (choose(8) == 0)
            continue; // dropped unused
        const auto plan = cache.plan(found);
        auto sequence = cache.open(std::move(found), plan);
        past known = all.first(plan.first);
        wrong += !rows_hold(cache, sequence.table(), known.names);
        if (choose(8) == 0)
            (void)cache.reserve(sequence, 1 + choose(40)); // rolled back
        const auto rest = std::span<const kv::token_id>(tokens).subspan(plan.first);
        if (!append(cache, sequence, known, rest))
            continue;
        auto twin = sequence.fork(choose(known.size() + 1));
        past other = known.first(twin.size());
        if (append(cache, twin, other, counted(7, 1 + choose(20))))
            wrong += !rows_hold(cache, twin.table(), other.names);
        wrong += !rows_hold(cache, sequence.table(), known.names);
        if (kept)
            wrong += !rows_hold(cache, kept->table(), of_kept.names);
        const std::size_t cut = choose(known.size() + 1);
        sequence.truncate(cut);
        if (choose(4) == 0) {
            of_kept = known.first(cut);
            kept.emplace(std::move(sequence));
        }
    }
    return wrong;
}

} // namespace

TEST_CASE("threads share a cache with a mutex") {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
        CAPTURE(seed);
        auto cache = kv::make_cache(small, pages(24), kv::locking::mutex{}, kv::observer::counting{});
        std::atomic<int> wrong{0};
        std::atomic<bool> over{false};
        std::vector<std::thread> threads;
        for (std::uint64_t i = 0; i < workers; ++i)
            threads.emplace_back([&, i] { wrong += use(cache, workers * seed + i, 150); });
        std::thread watcher([&] { // a reader of the statistics
            while (!over) {
                const kv::cache_stats now = cache.stats();
                wrong += now.free + now.in_use + now.evictable != now.pages;
                wrong += !cache.check();
                wrong += cache.describe().empty();
                cache.ask_observer([](const auto&) {});
                std::this_thread::yield();
            }
        });
        for (std::thread& thread : threads)
            thread.join();
        over = true;
        watcher.join();
        CHECK(wrong == 0);
        CHECK(cache.check());
        CHECK(cache.stats().in_use == 0);
    }
}

TEST_CASE("threads of several tenants share a cache with a mutex") {
    for (std::uint64_t seed = 0; seed < 2; ++seed) {
        CAPTURE(seed);
        auto cache =
            kv::make_tenant_cache(workers, {}, small, pages(40), kv::locking::mutex{}, kv::eviction::cost_aware{});
        std::atomic<int> wrong{0};
        std::vector<std::thread> threads;
        for (std::uint64_t i = 0; i < workers; ++i)
            threads.emplace_back([&, i] {
                const auto own = *cache.open(kv::tenant_salt(std::to_string(i)), 8 + 4 * i);
                wrong += use(own, 100 + workers * seed + i, 100);
            });
        for (std::thread& thread : threads)
            thread.join();
        CHECK(wrong == 0);
        CHECK(cache.check());
        CHECK(cache.stats().in_use == 0);
    }
}

TEST_CASE("a page is copied while its holder writes after the shared rows") {
    auto cache = kv::make_cache(small, pages(24), kv::locking::mutex{});
    auto a = cache.open();
    past one;
    REQUIRE(append(cache, a, one, counted(0, 10)));
    auto lease = cache.reserve(a, 6);
    REQUIRE(lease);
    std::thread writer([&] {
        for (int again = 0; again < 200; ++again)
            for (std::size_t row = 0; row < 6; ++row)
                write_row(*lease, small, row, static_cast<std::uint64_t>(again));
    });
    bool sound = true;
    for (int again = 0; again < 50; ++again) {
        auto found = cache.match(one.tokens);
        auto b = cache.open(std::move(found), {10, 0});
        past two = one;
        sound = sound && append(cache, b, two, counted(40 + again, 2)) && rows_hold(cache, b.table(), two.names);
    }
    writer.join();
    CHECK(sound);
}
