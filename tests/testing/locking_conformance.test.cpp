// SPDX-License-Identifier: MIT
#include <kvcache/locking/all.hpp>
#include <kvcache/testing/locking_conformance.hpp>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("a mutexed cache is used by one thread at a time") {
    CHECK(kv::testing::locking_conformance(kv::locking::mutex{}, 4) == kv::testing::violations{});
}

TEST_CASE("an unlocked cache is for one thread") {
    CHECK(kv::testing::locking_conformance(kv::locking::none{}, 1) == kv::testing::violations{});
}
