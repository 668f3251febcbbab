// SPDX-License-Identifier: MIT
#include <kvcache/kernel/team.hpp>

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
    kv::team threads(3);
    std::size_t calls = 0;
    threads.share(10, kv::team::worth_sharing - 1, [&](std::size_t begin, std::size_t end) {
        ++calls;
        CHECK(begin == 0);
        CHECK(end == 10);
    });
    CHECK(calls == 1);
    std::atomic<std::size_t> covered = 0;
    threads.share(10, kv::team::worth_sharing, [&](std::size_t begin, std::size_t end) { covered += end - begin; });
    CHECK(covered == 10);
}

TEST_CASE("every index is dealt exactly once, whatever the jobs and the threads") {
    const std::size_t cut = GENERATE(0u, 1u, 4u, 15u); // 0: not adjacent
    for (std::size_t threads = 1; threads <= 6; ++threads) {
        kv::team team(threads);
        REQUIRE(team.threads() == threads);
        for (std::size_t jobs = 0; jobs <= 70; ++jobs) {
            // Ranges do not overlap, so no two threads write one number.
            std::vector<int> dealt(jobs * std::max<std::size_t>(cut, 1));
            const auto deal = [&](std::size_t begin, std::size_t end) {
                for (std::size_t i = begin; i < end; ++i)
                    ++dealt[i];
            };
            if (cut > 0)
                team.share_adjacent(jobs, cut, kv::team::worth_sharing, deal);
            else
                team.share(jobs, deal);
            INFO(threads << " threads, " << jobs << " jobs, cut " << cut);
            REQUIRE(std::ranges::all_of(dealt, [](int times) { return times == 1; }));
        }
    }
}

TEST_CASE("of a loop's parts only the last job comes by pieces, and nothing empty comes") {
    constexpr std::size_t cut = 4;
    for (std::size_t threads = 2; threads <= 5; ++threads) {
        kv::team team(threads);
        for (std::size_t jobs = 2; jobs <= 90; ++jobs) {
            std::atomic<std::size_t> pieces = 0, empty = 0, broken = 0;
            team.share_adjacent(jobs, cut, kv::team::worth_sharing, [&](std::size_t begin, std::size_t end) {
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
    kv::team team(3);
    std::vector<std::size_t> counts(7);
    for (std::size_t round = 0; round < 5000; ++round)
        team.share(round % 2 == 0 ? counts.size() : counts.size() + 3, [&](std::size_t begin, std::size_t end) {
            for (std::size_t i = begin; i < std::min(end, counts.size()); ++i)
                counts[i] += counts[i] == round; // perhaps another thread wrote it last
        });
    CHECK(std::ranges::all_of(counts, [](std::size_t n) { return n == 5000; }));
}

TEST_CASE("a team may go right after its first loop, or unused") {
    std::atomic<int> ran = 0;
    for (int i = 0; i < 200; ++i) {
        kv::team team(4);
        if (i % 3 != 0)
            team.share(4, [&](std::size_t begin, std::size_t end) { ran += static_cast<int>(end - begin); });
    }
    CHECK(ran == 133 * 4);
}

TEST_CASE("a team moves between loops") {
    kv::team first(2);
    int ran = 0;
    kv::team second = std::move(first);
    second.share(1, [&](std::size_t begin, std::size_t end) { ran += static_cast<int>(end - begin); });
    CHECK(ran == 1);
}

TEST_CASE("what a body throws comes out of share, once every thread has ended, and the team works on") {
    kv::team team(3);
    for (std::size_t thrower = 0; thrower < 3; ++thrower) {
        std::atomic<int> ended = 0;
        const auto loop = [&] {
            team.share(3, [&](std::size_t begin, std::size_t) {
                ++ended;
                if (begin == thrower)
                    throw std::runtime_error("body");
            });
        };
        CHECK_THROWS_AS(loop(), std::runtime_error);
        CHECK(ended == 3);
    }
    std::atomic<int> ran = 0;
    team.share(9, [&](std::size_t begin, std::size_t end) { ran += static_cast<int>(end - begin); });
    CHECK(ran == 9);
}

TEST_CASE("a body that shares again is a caller's mistake") {
    kv::team team(2);
    const auto nested = [&] {
        team.share(2, [&](std::size_t, std::size_t) { team.share(2, [](std::size_t, std::size_t) {}); });
    };
    CHECK_THROWS_AS(nested(), kv::contract_violation);
}

TEST_CASE("a team has at least one thread") {
    CHECK_THROWS_AS(kv::team(0), kv::contract_violation);
}

TEST_CASE("a team's scratch holds what is asked for, on a cache line, and only grows") {
    kv::team threads(2);
    float* const first = threads.scratch(100);
    CHECK(reinterpret_cast<std::uintptr_t>(first) % kv::line_bytes == 0);
    CHECK(threads.scratch(1) == first);
    float* const more = threads.scratch(1000);
    std::fill_n(more, 1000, 1.0f);
    CHECK(threads.scratch(1000) == more);
}
