// SPDX-License-Identifier: MIT
#include <kvcache/cuda/emulated_block.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;
namespace cuda = kv::cuda;

TEST_CASE("threads of a phase run in orders that differ, each once") {
    cuda::emulated_block group(0, 32, 0, 1);
    std::vector<unsigned> first, second;
    group.each([&](unsigned thread) { first.push_back(thread); });
    group.each([&](unsigned thread) { second.push_back(thread); });
    CHECK(first != second);
    std::sort(first.begin(), first.end());
    std::sort(second.begin(), second.end());
    CHECK(first == second);
    CHECK(first.back() == 31);
    CHECK(first.size() == 32);
}

TEST_CASE("shared memory begins as NaNs and is no larger than requested") {
    cuda::emulated_block group(3, 4, 100, 1);
    CHECK(group.block() == 3);
    CHECK(std::isnan(group.shared<float>(96, 1)[0]));
    CHECK_THROWS_AS(group.shared<float>(96, 2), kv::contract_violation);
    CHECK_THROWS_AS(group.shared<float>(2, 1), kv::contract_violation);
}

TEST_CASE("registers stay between phases") {
    cuda::emulated_block group(0, 8, 0, 5);
    auto own = group.own<int>();
    group.alone([&](unsigned thread) { own[thread] = static_cast<int>(thread) * 10; });
    group.each([&](unsigned thread) { CHECK(own[thread] == static_cast<int>(thread) * 10); });
}

TEST_CASE("asynchronous copies arrive batch by batch, when they are waited for") {
    alignas(16) int from[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    cuda::emulated_block group(0, 1, 48, 1);
    int* const to = group.shared<int>(0, 12);
    group.alone([&](unsigned) { group.copy_async(to, from, true); });
    group.commit();
    group.alone([&](unsigned) {
        group.copy_async(to + 4, from + 4, true);
        group.copy_async(to + 8, from, false);
    });
    group.commit();
    CHECK(to[0] == -1);
    group.arrive<1>();
    CHECK(to[3] == 4);
    CHECK(to[4] == -1);
    group.arrive<0>();
    CHECK(to[7] == 8);
    CHECK(to[8] == 0);
}
