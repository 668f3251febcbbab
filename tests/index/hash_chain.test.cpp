// SPDX-License-Identifier: MIT
#include <kvcache/index/hash_chain.hpp>
#include <kvcache/testing/violations.hpp>

#include <cstdint>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("pages under few hashes are found while others come and go") {
    for (const std::uint64_t hashes : {1u, 3u, 60u}) {
        constexpr std::uint32_t pages = 50;
        kv::index::hash_slots slots(pages);
        std::vector<bool> present(pages, false);
        kv::testing::detail::choices choose(hashes);
        const auto hash_of = [&](std::uint32_t page) { return page % hashes * 0x1'0000'0011ull; };
        for (int round = 0; round < 3000; ++round) {
            const auto page = static_cast<std::uint32_t>(choose.below(pages));
            if (present[page])
                slots.erase(hash_of(page), page);
            else
                slots.insert(hash_of(page), page);
            present[page] = !present[page];
            for (std::uint32_t asked = 0; asked < pages; ++asked)
                REQUIRE(slots.find(hash_of(asked), [&](std::uint32_t found) { return found == asked; }) ==
                        (present[asked] ? asked : kv::index::hash_slots::none));
        }
    }
}
