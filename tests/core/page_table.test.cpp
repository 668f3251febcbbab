// SPDX-License-Identifier: MIT
#include <kvcache/core/id.hpp>

#include <type_traits>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("entries are equal if every field is") {
    STATIC_REQUIRE(std::is_trivially_copyable_v<kv::page_entry>);
    const kv::page_entry entry{.page = kv::page_id{3}, .base = -5, .first = 2, .count = 7};
    CHECK(entry == kv::page_entry{kv::page_id{3}, -5, 2, 7});
    CHECK(entry != kv::page_entry{kv::page_id{4}, -5, 2, 7});
    CHECK(entry != kv::page_entry{kv::page_id{3}, 5, 2, 7});
    CHECK(entry != kv::page_entry{kv::page_id{3}, -5, 1, 7});
    CHECK(entry != kv::page_entry{kv::page_id{3}, -5, 2, 6});
}
