// SPDX-License-Identifier: MIT
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/storage/huge_pages.hpp>
#include <kvcache/testing/role_conformance.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("huge pages report what they got and begin on a boundary") {
    for (const bool set_aside : {true, false}) {
        const auto state = kv::storage::huge_pages{.set_aside = set_aside}.open(40, 300'001);
        REQUIRE(state.backing() != kv::storage::huge_pages::backing::none);
        if (!set_aside)
            CHECK(state.backing() != kv::storage::huge_pages::backing::set_aside);
        REQUIRE(state.acquire(kv::page_id{0}));
        CHECK(reinterpret_cast<std::uintptr_t>(state.bytes(kv::page_id{0}).data()) % kv::huge_page_bytes == 0);
        const auto last = state.bytes(kv::page_id{39});
        CHECK(kvcache::ranges::all_of(last, [](std::byte b) { return b == std::byte{}; }));
        kvcache::ranges::fill(last, std::byte{7});
        CHECK(last.back() == std::byte{7});
        CHECK(kv::testing::storage_conformance(kv::storage::huge_pages{.set_aside = set_aside}, 2).empty());
    }
}

TEST_CASE("pages beyond the memory of the machine are refused") {
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
    for (const auto& [pages, bytes] :
         {std::pair{std::size_t{1} << 31, static_cast<std::size_t>(std::uint64_t{most} >> 34)},
          {std::size_t{4}, most >> 2}}) {
        auto state = kv::storage::huge_pages{}.open(pages, bytes);
        CHECK(state.backing() == kv::storage::huge_pages::backing::none);
        CHECK_FALSE(state.acquire(kv::page_id{0}));
        CHECK(to_string(state.backing()) == std::string("no memory"));
    }
}
