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

TEST_CASE("tokens are appended, their own among them") {
    kv::sequence_state state;
    std::vector<kv::token_id> expected;
    for (int i = 0; i < 12; ++i) {
        const kv::token_id next{i};
        state.prepare(0, 1);
        state.append({&next, 1});
        state.prepare(0, state.tokens.size());
        state.append(state.tokens);
        expected.push_back(next);
        const auto once = expected;
        expected.insert(expected.end(), once.begin(), once.end());
        REQUIRE(state.tokens.size() == expected.size());
    }
    CHECK(state.tokens == expected);
}

TEST_CASE("tokens that were looked at before they moved can be looked at until the next lease") {
    kv::sequence_state from, to;
    from.tokens = {kv::token_id{1}, kv::token_id{2}};
    from.tokens.shrink_to_fit();
    const std::span<const kv::token_id> seen = from.tokens;
    from.prepare(0, 3);
    to.prepare(0, 2);
    from.append(seen);
    CHECK(from.tokens.data() != seen.data());
    to.append(seen);
    CHECK(to.tokens == std::vector{kv::token_id{1}, kv::token_id{2}});
    from.prepare(0, 1); // fits
    CHECK(from.spare_tokens.capacity() == 0);
}

TEST_CASE("room that a lease did not need is the next one's") {
    kv::sequence_state state;
    state.prepare(0, 10);
    const auto* room = state.spare_tokens.data();
    state.prepare(0, 7);
    CHECK(state.spare_tokens.data() == room);
    const std::vector<kv::token_id> seven(7);
    state.append(seven);
    CHECK(state.tokens.data() == room);
    CHECK(state.tokens == seven);
}
