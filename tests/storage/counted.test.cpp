// SPDX-License-Identifier: MIT
#include <kvcache/storage/counted.hpp>
#include <kvcache/testing/fault_injecting.hpp>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("what is given, refused and taken back is counted") {
    auto state = kv::storage::counted<kv::testing::fault_injecting_storage<>>{.inner = {.every = 3}}.open(8, 64);
    for (std::uint32_t page = 0; page < 6; ++page)
        CHECK(state.acquire(kv::page_id{page}) == (page % 3 != 2));
    state.release(kv::page_id{0});
    const auto moved = std::move(state);
    CHECK(moved.counts().acquired == 4);
    CHECK(moved.counts().refused == 2);
    CHECK(moved.counts().released == 1);
    CHECK(moved.counts().out() == 3);
    CHECK(moved.counts().most == 4);
}
