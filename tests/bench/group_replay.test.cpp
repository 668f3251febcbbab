// SPDX-License-Identifier: MIT
#include "../../bench/replay/group_replay.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

#include <catch2/catch.hpp>

namespace {

// A prompt of so many tokens of the document that begins with `first`, and of an answer.
bench::block_request request(std::int32_t first, std::size_t length, std::size_t answer = 0) {
    bench::block_request made{.tokens = std::vector<kvcache::token_id>(length + answer), .prompt = length};
    for (std::size_t i = 0; i < made.tokens.size(); ++i)
        made.tokens[i] = kvcache::token_id{first + static_cast<std::int32_t>(i)};
    return made;
}

} // namespace

TEST_CASE("a replay of layer groups reuses prompts, answers, and windows while there is room") {
    for (const auto& [name, layout] : bench::model_layouts()) {
        INFO(name);
        CHECK(layout.check().has_value());
        const std::uint64_t whole = 2 * layout.bytes(3000, 2); // a prompt and its windows
        bench::group_replay large(layout, {.bytes = 16 * whole, .batch = 100}),
            small(layout, {.bytes = whole, .batch = 100});
        CHECK(large.run(request(0, 2000)) == 0);
        CHECK(large.run(request(0, 2000)) == 1999);
        CHECK(large.run(request(0, 1000, 50)) == 999);
        CHECK(large.run(request(0, 1700)) == 1699);
        CHECK(large.check().has_value());
        CHECK(small.run(request(0, 3000)) == 0);
        CHECK(small.run(request(100000, 3000)) == 0);
        CHECK(small.run(request(0, 3000)) < 2999);
        CHECK(small.check().has_value());
        bench::group_replay none(layout, {.bytes = whole / 16, .batch = 100});
        CHECK_THROWS_AS(none.run(request(0, 3000)), std::runtime_error);
    }
}
