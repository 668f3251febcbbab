// SPDX-License-Identifier: MIT
#include <kvcache/core/memory_mapping.hpp>

#include <utility>

#include <catch2/catch.hpp>

TEST_CASE("an address range moves and its bytes stay") {
    auto range = kvcache::address_range::map(8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
    REQUIRE_FALSE(range.empty());
    range.bytes()[8191] = std::byte{3};
    auto moved = std::move(range);
    CHECK(range.empty()); // NOLINT: a moved-from range is empty
    CHECK(moved.bytes()[8191] == std::byte{3});
    moved = kvcache::address_range();
    CHECK(kvcache::address_range::map(~std::size_t{} / 2, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS).empty());
}
