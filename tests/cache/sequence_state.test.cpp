// SPDX-License-Identifier: MIT
#include <kvcache/cache/sequence_state.hpp>

#include <span>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("a table is cut to rows") {
    kv::sequence_state state;
    CHECK(state.cut(5) == 0);
    state.table = {{.count = 16}, {.count = 16}, {.count = 7}};
    CHECK(state.open_rows(16) == 7u);
    CHECK(state.full_entries(16) == 2);
    CHECK(state.cut(39) == 3);
    CHECK(state.cut(32) == 2);
    state.table.resize(2);
    CHECK_FALSE(state.open_rows(16));
    CHECK(state.full_entries(16) == 2);
    CHECK(state.cut(17) == 2);
    CHECK(state.table.back().count == 1);
    CHECK(state.cut(0) == 0);
}
