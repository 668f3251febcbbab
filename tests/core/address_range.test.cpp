// SPDX-License-Identifier: MIT
#include <kvcache/core/platform/memory.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>

#include <catch2/catch.hpp>

namespace platform = kvcache::platform;

TEST_CASE("an address range moves and its bytes stay") {
    auto range = platform::address_range::map(8192, platform::backing::lazy);
    REQUIRE_FALSE(range.empty());
    range.bytes()[8191] = std::byte{3};
    auto moved = std::move(range);
    CHECK(range.empty()); // NOLINT: a moved-from range is empty
    CHECK(moved.bytes()[8191] == std::byte{3});
    moved = platform::address_range();
    CHECK(platform::address_range::map(~std::size_t{} / 4096 * 4096, platform::backing::nothing).empty());
}
