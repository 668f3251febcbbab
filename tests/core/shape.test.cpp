// SPDX-License-Identifier: MIT
#include <kvcache/core/shape.hpp>

#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kv::literals;

TEST_CASE("a shape is valid if it has extents and whole tiles") {
    CHECK(kv::page_shape{}.valid());
    CHECK(kv::page_shape{1, 1, 1, 16}.valid());
    CHECK_FALSE(kv::page_shape{0, 1, 1, 16}.valid());
    CHECK_FALSE(kv::page_shape{1, 0, 1, 16}.valid());
    CHECK_FALSE(kv::page_shape{1, 1, 0, 16}.valid());
    CHECK_FALSE(kv::page_shape{1, 1, 1, 0}.valid());
    CHECK_FALSE(kv::page_shape{1, 1, 1, 17}.valid());
    STATIC_REQUIRE(1_KiB == 1024);
    STATIC_REQUIRE(3_MiB == 3 * 1024 * 1024);
    STATIC_REQUIRE(2_GiB == 2ull << 30);
}
