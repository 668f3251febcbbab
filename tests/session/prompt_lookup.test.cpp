// SPDX-License-Identifier: MIT
#include <kvcache/session/engine_job.hpp>

#include <cstdint>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

std::vector<int> guess(const std::vector<int>& text, std::size_t most) {
    std::vector<kv::token_id> ids;
    for (const int each : text)
        ids.push_back(kv::token_id{each});
    std::vector<int> made;
    for (const kv::token_id each : kv::prompt_lookup(ids, most))
        made.push_back(kv::index_of(each));
    return made;
}

} // namespace

TEST_CASE("a guess is what followed the latest earlier place of the longest tail") {
    CHECK(guess({}, 4).empty());
    CHECK(guess({1}, 4).empty());
    CHECK(guess({1, 2, 3}, 4).empty());
    CHECK(guess({1, 1}, 4) == std::vector{1});
    CHECK(guess({5, 1, 2, 3, 9, 1, 2, 3}, 2) == std::vector{9, 1});
    CHECK(guess({1, 2, 3, 7, 4, 2, 3, 8, 1, 2, 3}, 1) == std::vector{7}); // three common tokens before two
    CHECK(guess({2, 3, 7, 2, 3, 8, 4, 2, 3}, 1) == std::vector{8});       // the latest of equals
    CHECK(guess({4, 6, 4}, 9) == std::vector{6, 4});
    CHECK(guess({1, 2, 1, 2}, 0).empty());
}
