// SPDX-License-Identifier: MIT
#include <kvcache/index/radix.hpp>
#include <kvcache/testing/violations.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("a page of a line that is never full is remembered until it is erased") {
    constexpr std::uint32_t pages = 60;
    kv::index::page_hints hints(pages);
    std::vector<bool> present(pages, false);
    kv::testing::detail::choices choose(3);
    // At most eight pages per line, each with its own tag.
    const auto hash_of = [](std::uint32_t page) { return (std::uint64_t{page % 8} * 0x2000'0000u << 32) + page / 8; };
    for (int round = 0; round < 3000; ++round) {
        const auto page = static_cast<std::uint32_t>(choose.below(pages));
        if (present[page])
            hints.erase(hash_of(page), page);
        else
            hints.insert(hash_of(page), page);
        present[page] = !present[page];
        for (std::uint32_t asked = 0; asked < pages; ++asked)
            REQUIRE(hints.find(hash_of(asked)) == (present[asked] ? asked : kv::index::page_hints::none));
    }
}

TEST_CASE("a full line forgets newcomers and no others") {
    kv::index::page_hints hints(100);
    for (std::uint32_t page = 0; page < 12; ++page)
        hints.insert(page, page);
    for (std::uint32_t page = 0; page < 12; ++page)
        CHECK(hints.find(page) == (page < 8 ? page : kv::index::page_hints::none));
    hints.erase(11, 11); // was not stored
    hints.erase(3, 3);
    hints.insert(11, 11);
    CHECK(hints.find(3) == kv::index::page_hints::none);
    CHECK(hints.find(11) == 11);
}

TEST_CASE("of two pages under one hash either is the answer") {
    kv::index::page_hints hints(100);
    const std::uint64_t hash = 0x1234'5678'9abc'def0u;
    hints.insert(hash, 4);
    hints.insert(hash, 2);
    const std::uint32_t found = hints.find(hash);
    CHECK((found == 2 || found == 4));
    hints.erase(hash, found);
    CHECK(hints.find(hash) == 6 - found);
}

TEST_CASE("a table for no pages knows none") {
    kv::index::page_hints hints(0);
    CHECK(hints.find(0) == kv::index::page_hints::none);
}
