// SPDX-License-Identifier: MIT
//
// Threads that run freely over one cache with a mutex: what ThreadSanitizer watches (./dev check).
#include <kvcache/cache.hpp>
#include <kvcache/eviction/cost_aware.hpp>
#include <kvcache/locking/mutex.hpp>
#include <kvcache/observer/counting.hpp>
#include <kvcache/storage/external.hpp>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "cache/matching.hpp"
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
        auto found = match_in(cache, tokens);
        if (choose(8) == 0)
            continue; // dropped unused
        const auto plan = plan_of(cache, found);
        auto sequence = open_at(cache, std::move(found), plan);
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

/// A host's engine over external memory: in place of keys and values, each row holds the name of its prefix.
struct host_tensor {
    explicit host_tensor(std::size_t blocks) : rows(blocks * small.tokens) {}
    std::vector<std::uint64_t> rows;

    [[nodiscard]] std::uint64_t* block(kv::page_id page) { return rows.data() + kv::index_of(page) * small.tokens; }
    [[nodiscard]] bool copy(kv::page_id from, kv::page_id to, std::size_t in_use) {
        std::copy_n(block(from), in_use, block(to)); // another thread may be writing the rows after them
        return true;
    }

    template <class Lease>
    void write(Lease& lease, past& known, std::span<const kv::token_id> tokens) {
        for (std::size_t row = 0; row < tokens.size(); ++row) {
            known.push(tokens[row]);
            const auto to = lease.slot_of(row);
            block(to.page)[to.row] = known.names.back();
        }
        lease.commit(tokens);
    }
    [[nodiscard]] bool hold(std::span<const kv::page_entry> table, const past& known) {
        std::size_t position = 0;
        for (const kv::page_entry& entry : table)
            for (std::uint32_t row = 0; row < entry.count && position < known.size(); ++row)
                if (block(entry.page)[row] != known.names[position++])
                    return false;
        return position == known.size();
    }
};

/// Requests with common prefixes that are waited for, then forked and continued token by token. Counts errors.
template <class Cache>
int serve(Cache& cache, host_tensor& host, std::uint64_t seed, int rounds) {
    seeded choose(seed);
    int wrong = 0;
    for (int round = 0; round < rounds; ++round) {
        auto prompt = counted(static_cast<std::int32_t>(100 * choose(3)), 16 + 16 * choose(3)); // whole blocks
        const auto own = counted(static_cast<std::int32_t>(1000 + choose(4)), 1 + choose(16));
        prompt.insert(prompt.end(), own.begin(), own.end());
        auto request = cache.acquire(prompt, {.pending = kv::pending_prefix::wait});
        if (!request)
            continue; // no block is left
        past known;
        for (const kv::token_id token : std::span(prompt).first(request->lease.first()))
            known.push(token);
        wrong += !host.hold(request->sequence.table(), known);
        host.write(request->lease, known, std::span<const kv::token_id>(prompt).subspan(known.size()));
        auto fork = request->sequence.fork(known.size() / small.tokens * small.tokens);
        past other = known.first(fork.size());
        for (int step = 0; step < 3; ++step)
            for (auto* one : {&request->sequence, &fork}) {
                past& its = one == &fork ? other : known;
                const kv::token_id next{static_cast<std::int32_t>(choose(2))};
                if (auto lease = cache.reserve(*one, 1))
                    host.write(*lease, its, {&next, 1});
                wrong += !host.hold(one->table(), its);
            }
    }
    return wrong;
}

template <class Work>
void on_each_thread(Work&& work) {
    std::vector<std::thread> threads;
    for (std::uint64_t i = 0; i < workers; ++i)
        threads.emplace_back([&, i] { work(i); });
    for (std::thread& thread : threads)
        thread.join();
}

} // namespace

TEST_CASE("threads share a cache over a host's memory, and wait for each other's prefixes") {
    for (const bool merge : {false, true}) {
        host_tensor host(24);
        auto cache = kv::make_cache(
            {.shape = small, .limit = {.pages = 24}, .merge_equal_pages = merge}, kv::locking::mutex{},
            kv::storage::external{.copy = [&](auto from, auto to, auto rows) { return host.copy(from, to, rows); },
                                  .on_move = [](const kv::moved_entry&) {}});
        std::atomic<int> wrong{0};
        on_each_thread([&](std::uint64_t i) { wrong += serve(cache, host, i, 200); });
        CHECK(wrong == 0);
        CHECK(cache.check());
        CHECK(cache.stats().in_use == 0);
    }
}

TEST_CASE("threads fork one sequence at once") {
    auto cache = kv::make_cache({small, pages(64)}, kv::locking::mutex{});
    auto sequence = cache.open();
    past known;
    REQUIRE(append(cache, sequence, known, counted(0, 40)));
    sequence.set_cacheable_limit(20);
    const auto& shared = sequence;
    std::atomic<int> wrong{0};
    on_each_thread([&](std::uint64_t i) {
        seeded choose(i);
        for (int round = 0; round < 200; ++round) {
            auto fork = shared.fork(choose(shared.size() + 1));
            wrong += cache.lookup(known.tokens).pending_tokens > 0; // reads the limits of all sequences
            fork.set_cacheable_limit(20);
            past own = known.first(fork.size());
            wrong += fork.cacheable_limit() != 20;
            if (append(cache, fork, own, counted(100, choose(20))))
                wrong += !rows_hold(cache, fork.table(), own.names);
        }
    });
    CHECK(wrong == 0);
    CHECK(cache.check());
}

TEST_CASE("threads share a cache with a mutex") {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
        CAPTURE(seed);
        auto cache = kv::make_cache({small, pages(24)}, kv::locking::mutex{}, kv::observer::counting{});
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
                wrong += kv::describe(cache).empty();
                cache.with_observer([](const auto&) {});
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
        auto cache = kv::make_cache({.shape = small, .limit = pages(40), .tenants = workers}, kv::locking::mutex{},
                                    kv::eviction::cost_aware{});
        std::atomic<int> wrong{0};
        std::vector<std::thread> threads;
        for (std::uint64_t i = 0; i < workers; ++i)
            threads.emplace_back([&, i] {
                const auto own = *view_of(cache, std::to_string(i), 8 + 4 * i);
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
    auto cache = kv::make_cache({small, pages(24)}, kv::locking::mutex{});
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
        auto found = match_in(cache, one.tokens);
        auto b = open_at(cache, std::move(found), {10, 0});
        past two = one;
        sound = sound && append(cache, b, two, counted(40 + again, 2)) && rows_hold(cache, b.table(), two.names);
    }
    writer.join();
    CHECK(sound);
}
