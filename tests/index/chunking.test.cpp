// SPDX-License-Identifier: MIT
#include <kvcache/index/chunking.hpp>

#include <cstddef>
#include <random>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using tokens = std::vector<kv::token_id>;

tokens of(std::initializer_list<int> ids) {
    tokens made;
    for (const int id : ids)
        made.push_back(kv::token_id{id});
    return made;
}

tokens zeros(std::size_t count) {
    return tokens(count, kv::token_id{0});
}

std::vector<std::size_t> lengths(const std::vector<kv::index::token_run>& runs) {
    std::vector<std::size_t> made;
    for (const kv::index::token_run& run : runs)
        made.push_back(run.count);
    return made;
}

using counts = std::vector<std::size_t>;

} // namespace

TEST_CASE("a text is cut after a fixed number of tokens, and its rest is a chunk") {
    CHECK(kv::index::chunking{}.split({}).empty());
    CHECK(lengths(kv::index::chunking{}.split(zeros(1))) == counts{1});
    CHECK(lengths(kv::index::chunking{}.split(zeros(128))) == counts{128});
    CHECK(lengths(kv::index::chunking{}.split(zeros(300))) == counts{128, 128, 44});
}

TEST_CASE("a document's marker begins a chunk") {
    kv::index::chunking how{.size = 0, .marker = of({7, 8})};
    CHECK(lengths(how.split(of({1, 7, 8, 2, 3, 7, 7, 8, 7, 8}))) == counts{1, 5, 2, 2});
    CHECK(lengths(how.split(of({7, 8, 1}))) == counts{3});
    CHECK(lengths(how.split(of({1, 7}))) == counts{2});
    how.size = 3;
    CHECK(lengths(how.split(of({7, 8, 2, 3, 4, 7, 8, 5}))) == counts{3, 2, 3});
}

TEST_CASE("a chunk ends with the sentence whose end is nearest, the earlier of two, and is not too short") {
    tokens text = zeros(40);
    kv::index::chunking how{.size = 10, .least = 4, .window = 3, .ends = of({5})};
    CHECK(how.split(text).front().count == 10);
    text[6] = kv::token_id{5}; // 7 tokens, 3 before the target
    CHECK(how.split(text).front().count == 7);
    text[11] = kv::token_id{5}; // 12 tokens, 2 after the target
    CHECK(how.split(text).front().count == 12);
    text[7] = kv::token_id{5}; // 8 tokens, 2 before the target
    CHECK(how.split(text).front().count == 8);
    how.least = 9;
    CHECK(how.split(text).front().count == 12);
    how.window = 1;
    CHECK(how.split(text).front().count == 10);
}

TEST_CASE("chunks lie end to end, and no sentence's end makes one shorter or longer than it may be") {
    std::mt19937 dice(3);
    for (int round = 0; round < 300; ++round) {
        INFO("round " << round);
        kv::index::chunking how{.size = dice() % 40, .least = dice() % 30, .window = dice() % 30, .ends = of({1, 2})};
        if (round % 2 == 0)
            how.marker = of({3, 4});
        tokens text;
        for (std::size_t n = dice() % 400; n > 0; --n)
            text.push_back(kv::token_id{static_cast<int>(dice() % 8)});
        std::size_t end = 0;
        for (const kv::index::token_run& run : how.split(text)) {
            REQUIRE(run.first == end);
            REQUIRE(run.count > 0);
            if (how.size > 0)
                REQUIRE(run.count <= how.size + std::min(how.window, how.size / 2));
            end += run.count;
        }
        REQUIRE(end == text.size());
    }
}
