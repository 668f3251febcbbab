// SPDX-License-Identifier: MIT
#include <kvcache/kernel/thread_pool.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("a loop of little work stays with the caller, whole") {
    kv::thread_pool threads(3);
    std::size_t calls = 0;
    threads.parallel_for(10, kv::thread_pool::min_parallel_work - 1, [&](std::size_t begin, std::size_t end) {
        ++calls;
        CHECK(begin == 0);
        CHECK(end == 10);
    });
    CHECK(calls == 1);
    std::atomic<std::size_t> covered = 0;
    threads.parallel_for(10, kv::thread_pool::min_parallel_work,
                         [&](std::size_t begin, std::size_t end) { covered += end - begin; });
    CHECK(covered == 10);
}

TEST_CASE("every index is run exactly once, for any number of items and threads") {
    const std::size_t cut = GENERATE(0u, 1u, 4u, 15u); // 0: parallel_for instead of parallel_for_strided
    for (std::size_t threads = 1; threads <= 6; ++threads) {
        kv::thread_pool pool(threads);
        REQUIRE(pool.threads() == threads);
        for (std::size_t jobs = 0; jobs <= 70; ++jobs) {
            // Ranges do not overlap, so no two threads write the same element.
            std::vector<int> dealt(jobs * std::max<std::size_t>(cut, 1));
            const auto deal = [&](std::size_t begin, std::size_t end) {
                for (std::size_t i = begin; i < end; ++i)
                    ++dealt[i];
            };
            if (cut > 0)
                pool.parallel_for_strided(jobs, cut, kv::thread_pool::min_parallel_work, deal);
            else
                pool.parallel_for(jobs, deal);
            INFO(threads << " threads, " << jobs << " jobs, cut " << cut);
            REQUIRE(std::ranges::all_of(dealt, [](int times) { return times == 1; }));
        }
    }
}

TEST_CASE("of a loop's parts only the last job comes by pieces, and nothing empty comes") {
    constexpr std::size_t cut = 4;
    for (std::size_t threads = 2; threads <= 5; ++threads) {
        kv::thread_pool pool(threads);
        for (std::size_t jobs = 2; jobs <= 90; ++jobs) {
            std::atomic<std::size_t> pieces = 0, empty = 0, broken = 0;
            pool.parallel_for_strided(jobs, cut, kv::thread_pool::min_parallel_work,
                                      [&](std::size_t begin, std::size_t end) {
                                          pieces += end - begin < cut ? 1 : 0;
                                          empty += begin >= end ? 1 : 0;
                                          broken += end - begin >= cut && (begin % cut != 0 || end % cut != 0) ? 1 : 0;
                                      });
            INFO(threads << " threads, " << jobs << " jobs");
            CHECK(pieces == std::min(threads, jobs) * cut);
            CHECK(empty == 0);
            CHECK(broken == 0);
        }
    }
}

TEST_CASE("what a loop wrote is seen by the next, for thousands of rounds") {
    kv::thread_pool pool(3);
    std::vector<std::size_t> counts(7);
    for (std::size_t round = 0; round < 5000; ++round)
        pool.parallel_for(round % 2 == 0 ? counts.size() : counts.size() + 3, [&](std::size_t begin, std::size_t end) {
            for (std::size_t i = begin; i < std::min(end, counts.size()); ++i)
                counts[i] += counts[i] == round; // another thread may have written it last
        });
    CHECK(std::ranges::all_of(counts, [](std::size_t n) { return n == 5000; }));
}

TEST_CASE("a thread pool may be destroyed right after its first loop, or unused") {
    std::atomic<int> ran = 0;
    for (int i = 0; i < 200; ++i) {
        kv::thread_pool pool(4);
        if (i % 3 != 0)
            pool.parallel_for(4, [&](std::size_t begin, std::size_t end) { ran += static_cast<int>(end - begin); });
    }
    CHECK(ran == 133 * 4);
}

TEST_CASE("a thread pool can be moved between loops") {
    kv::thread_pool first(2);
    int ran = 0;
    kv::thread_pool second = std::move(first);
    second.parallel_for(1, [&](std::size_t begin, std::size_t end) { ran += static_cast<int>(end - begin); });
    CHECK(ran == 1);
}

TEST_CASE("an exception of a loop body is rethrown once every thread has ended, and the thread pool stays usable") {
    kv::thread_pool pool(3);
    for (std::size_t thrower = 0; thrower < 3; ++thrower) {
        std::atomic<int> ended = 0;
        const auto loop = [&] {
            pool.parallel_for(3, [&](std::size_t begin, std::size_t) {
                ++ended;
                if (begin == thrower)
                    throw std::runtime_error("body");
            });
        };
        CHECK_THROWS_AS(loop(), std::runtime_error);
        CHECK(ended == 3);
    }
    std::atomic<int> ran = 0;
    pool.parallel_for(9, [&](std::size_t begin, std::size_t end) { ran += static_cast<int>(end - begin); });
    CHECK(ran == 9);
}

TEST_CASE("a body that shares again is a caller's mistake") {
    kv::thread_pool pool(2);
    const auto nested = [&] {
        pool.parallel_for(2, [&](std::size_t, std::size_t) { pool.parallel_for(2, [](std::size_t, std::size_t) {}); });
    };
    CHECK_THROWS_AS(nested(), kv::contract_violation);
}

TEST_CASE("a thread pool has at least one thread") {
    CHECK_THROWS_AS(kv::thread_pool(0), kv::contract_violation);
}

TEST_CASE("the scratch memory of a thread pool has the requested size, starts on a cache line, and only grows") {
    kv::thread_pool threads(2);
    float* const first = threads.scratch(100);
    CHECK(reinterpret_cast<std::uintptr_t>(first) % kv::line_bytes == 0);
    CHECK(threads.scratch(1) == first);
    float* const more = threads.scratch(1000);
    std::fill_n(more, 1000, 1.0f);
    CHECK(threads.scratch(1000) == more);
}
