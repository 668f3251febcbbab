// SPDX-License-Identifier: MIT
#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/core/platform/standard.hpp>

#include <algorithm>
#include <span>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("tokens are appended, their own among them") {
    kv::token_buffer tokens;
    std::vector<kv::token_id> expected;
    for (int i = 0; i < 12; ++i) {
        const kv::token_id next{i};
        tokens.reserve(1);
        tokens.append({&next, 1});
        tokens.reserve(tokens.size());
        tokens.append(tokens);
        expected.push_back(next);
        const auto once = expected;
        expected.insert(expected.end(), once.begin(), once.end());
        REQUIRE(tokens.size() == expected.size());
    }
    CHECK(kvcache::ranges::equal(tokens, expected));
}

TEST_CASE("tokens that were looked at before they moved can be looked at until the next reserve") {
    const std::vector two{kv::token_id{1}, kv::token_id{2}};
    kv::token_buffer from, to;
    from.reserve(2);
    from.append(two);
    const std::span<const kv::token_id> seen = from;
    from.reserve(3);
    to.reserve(2);
    from.append(seen);
    CHECK(from.data() != seen.data());
    to.append(seen);
    CHECK(kvcache::ranges::equal(to, two));
}

TEST_CASE("a smaller reserve keeps the room of a larger one") {
    kv::token_buffer tokens;
    const std::vector<kv::token_id> ten(10);
    tokens.reserve(10);
    tokens.reserve(7);
    tokens.append(std::span(ten).first(7));
    const auto* room = tokens.data();
    tokens.reserve(3);
    tokens.append(std::span(ten).first(3));
    CHECK(tokens.data() == room);
    CHECK(kvcache::ranges::equal(tokens, ten));
}
