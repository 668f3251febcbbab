// SPDX-License-Identifier: MIT
#include <kvcache/index/sibling_order.hpp>
#include <kvcache/testing/violations.hpp>

#include <cstdint>
#include <set>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("two sets of pages stay ordered while pages come and go") {
    constexpr std::uint32_t pages = 200;
    kv::index::sibling_order order(pages);
    kv::index::sibling_order::set sets[2];
    std::set<std::uint32_t> truth[2];
    kv::testing::detail::choices choose(5);
    const auto in_front_of = [](std::uint32_t limit) { return [=](std::uint32_t page) { return page < limit; }; };
    for (int round = 0; round < 5000; ++round) {
        const auto page = static_cast<std::uint32_t>(choose.below(pages));
        const std::size_t which = page % 2;
        if (truth[which].insert(page).second) {
            order.insert(sets[which], page, in_front_of(page));
        } else {
            truth[which].erase(page);
            order.erase(sets[which], page, in_front_of(page));
        }
        for (std::size_t i = 0; i < 2; ++i) {
            const auto limit = static_cast<std::uint32_t>(choose.below(pages));
            const auto found = order.around(sets[i], in_front_of(limit));
            const auto after = truth[i].lower_bound(limit);
            REQUIRE(found.after == (after == truth[i].end() ? kv::index::sibling_order::none : *after));
            REQUIRE(found.before == (after == truth[i].begin() ? kv::index::sibling_order::none : *std::prev(after)));
            REQUIRE(sets[i].empty() == truth[i].empty());
        }
    }
}
