// SPDX-License-Identifier: MIT
#include "../../bench/replay/block_replay.hpp"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include <catch2/catch.hpp>

namespace {

using kvcache::token_id;
using by_token = bench::block_replay<kvcache::index::radix>;
using by_page = bench::block_replay<bench::full_pages>;

// A prompt of `length` tokens of the document that begins with `first`, and `answer` tokens more of it as the answer.
bench::block_request request(std::int32_t first, std::size_t length, std::size_t answer = 0) {
    bench::block_request made{.tokens = std::vector<token_id>(length + answer), .prompt = length};
    for (std::size_t i = 0; i < made.tokens.size(); ++i)
        made.tokens[i] = token_id{first + static_cast<std::int32_t>(i)};
    return made;
}

template <class Replay>
std::vector<std::size_t> reused(Replay& replay, const std::vector<bench::block_request>& requests) {
    std::vector<std::size_t> all;
    for (const auto& one : requests) {
        all.push_back(replay.run(one));
        const auto sound = replay.check();
        REQUIRE(sound);
    }
    return all;
}

using counts = std::vector<std::size_t>;

} // namespace

TEST_CASE("a replay by page reuses whole pages, and never the last token of a prompt") {
    by_page replay(64, 1);
    // 40 tokens are two pages and a part. 32 tokens are known whole, but the page of the last token is computed.
    CHECK(reused(replay, {request(0, 40), request(0, 40), request(0, 32), request(0, 33), request(0, 16),
                          request(0, 8)}) == counts{0, 32, 16, 32, 0, 0});
}

TEST_CASE("a replay by token also reuses parts of pages") {
    by_token replay(64, 1);
    CHECK(reused(replay, {request(0, 40), request(0, 40), request(0, 32), request(0, 50), request(0, 8)}) ==
          counts{0, 39, 31, 40, 7});
}

TEST_CASE("generated tokens are reused by the next turn") {
    by_page replay(64, 1);
    // The answer fills the second page and begins a third; without it, one page is known.
    CHECK(reused(replay, {request(0, 20, 14), request(0, 60), request(1000, 20), request(1000, 60)}) ==
          counts{0, 32, 0, 16});
}

TEST_CASE("the least recently used pages are evicted, the last page of a prompt first") {
    by_page replay(5, 1);
    // Two prompts of two pages and one of one page fill the cache; the first prompt is then used again.
    const counts filled = reused(replay, {request(0, 32), request(1000, 32), request(2000, 16), request(0, 33)});
    CHECK(filled == counts{0, 0, 0, 32});
    // That took a page for its last token: the last page of the second prompt. A page is free again for another prompt.
    CHECK(reused(replay, {request(3000, 16), request(1000, 33)}) == counts{0, 16});
}

TEST_CASE("requests in flight hold their pages, and the oldest is released for one that does not fit") {
    by_page replay(6, 3);
    CHECK(reused(replay, {request(0, 32), request(1000, 32)}) == counts{0, 0});
    CHECK(replay.stats().in_use == 4);
    CHECK(reused(replay, {request(2000, 48)}) == counts{0});
    CHECK(replay.stats().in_use == 5); // without the first, whose last page was evicted
    CHECK(reused(replay, {request(0, 17)}) == counts{16});
    CHECK_THROWS_AS(replay.run(request(4000, 7 * 16)), std::runtime_error);
}
