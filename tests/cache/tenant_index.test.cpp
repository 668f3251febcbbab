// SPDX-License-Identifier: MIT
#include <kvcache/cache/page_index.hpp>
#include <kvcache/index/radix.hpp>

#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("the same tokens under two roots are two pages that do not know of each other") {
    kv::tenant_index<kv::index::radix::state> index(kv::index::radix{}, {.tokens = 16}, 4, 2);
    index.add_root(1);
    index.add_root(2);
    const std::vector<kv::token_id> run(16, kv::token_id{2});
    const auto found = [&](std::uint32_t tenant) {
        kv::index_match match;
        index.match(tenant, run, match);
        return match;
    };
    CHECK(found(1).tokens == 0);
    CHECK(index.insert(index.root_of(1), run, kv::page_id{0}).what == kv::insertion::outcome::inserted);
    CHECK(found(1).pages == std::vector{kv::page_id{0}});
    CHECK(found(2).pages.empty());
    CHECK(index.insert(index.root_of(2), run, kv::page_id{1}).what == kv::insertion::outcome::inserted);
    CHECK(index.parent(kv::page_id{1}) == std::nullopt);
    CHECK(index.above(kv::page_id{1}) == index.root_of(2));
    CHECK(index.root_of(0) == std::nullopt);
}
