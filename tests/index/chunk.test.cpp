// SPDX-License-Identifier: MIT
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/index/chunk.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using tokens = std::vector<kv::token_id>;

constexpr std::uint32_t page_tokens = 16;
constexpr kv::page_shape shape{1, 1, 8, page_tokens};

tokens random_tokens(std::mt19937& dice, std::size_t count, unsigned kinds) {
    tokens made;
    for (; count > 0; --count)
        made.push_back(kv::token_id{static_cast<int>(dice() % kinds)});
    return made;
}

// Stores a text in new pages and returns them.
std::vector<kv::page_id> store(kv::index::chunk::state& index, const tokens& text, std::uint32_t& next) {
    std::vector<kv::page_id> pages;
    std::optional<kv::page_id> parent;
    for (std::size_t at = 0; at < text.size(); at += page_tokens) {
        const auto run = std::span(text).subspan(at, std::min<std::size_t>(page_tokens, text.size() - at));
        const auto done = index.insert(parent, run, kv::page_id{next});
        pages.push_back(done.what == kv::insertion::outcome::covered ? *done.other : kv::page_id{next++});
        parent = pages.back();
    }
    return pages;
}

bool note(kv::index::chunk::state& index, std::uint64_t salt, const std::vector<kv::page_id>& pages, std::size_t first,
          std::size_t count) {
    const std::size_t last = first + count - 1;
    return index.note(salt, pages[last / page_tokens], static_cast<std::uint32_t>(last % page_tokens + 1), count);
}

// The tokens stored at a chunk's location.
tokens lying(const kv::index::chunk::state& index, const kv::chunk_match& chunk) {
    tokens backwards;
    std::optional<kv::page_id> page = chunk.last;
    for (std::size_t end = chunk.end; backwards.size() < chunk.count; page = index.parent(*page), end = page_tokens)
        for (std::size_t row = end; row > 0 && backwards.size() < chunk.count; --row)
            backwards.push_back(index.run(*page)[row - 1]);
    kvcache::ranges::reverse(backwards);
    return backwards;
}

tokens joined(std::initializer_list<tokens> parts) {
    tokens all;
    for (const tokens& part : parts)
        all.insert(all.end(), part.begin(), part.end());
    return all;
}

} // namespace

TEST_CASE("a chunk is found anywhere in a prompt, with gaps, and repeated") {
    std::mt19937 dice(1);
    auto index = kv::index::chunk{.least = 8}.open(shape, 64);
    std::uint32_t next = 0;
    const tokens a = random_tokens(dice, 40, 1000), b = random_tokens(dice, 23, 1000), gap = random_tokens(dice, 11, 9);
    const auto pages = store(index, joined({a, b}), next);
    CHECK(index.chunks(0, a, 0).empty());
    REQUIRE(note(index, 0, pages, 0, 40));
    REQUIRE(note(index, 0, pages, 40, 23));
    const auto found = index.chunks(0, joined({gap, b, gap, a, a}), 0);
    REQUIRE(found.size() == 3);
    CHECK(found[0].first == 11);
    CHECK(found[1].first == 45);
    CHECK(found[2].first == 85);
    CHECK(found[0].count == 23);
    CHECK(index.chunks(0, a, 40).empty()); // all of it is known
    CHECK(index.chunks(0, a, 39).size() == 1);
}

TEST_CASE("a chunk that is too short, lies in no indexed page or belongs to another tenant is not found") {
    std::mt19937 dice(2);
    auto index = kv::index::chunk{.least = 8}.open(shape, 64);
    std::uint32_t next = 0;
    const tokens a = random_tokens(dice, 40, 1000);
    const auto pages = store(index, a, next);
    CHECK_FALSE(note(index, 1, pages, 0, 7));
    CHECK_FALSE(index.note(1, pages[0], 16, 17));
    CHECK_FALSE(index.note(1, pages[2], 9, 8)); // only eight rows are stored there
    CHECK_FALSE(index.note(1, kv::page_id{50}, 16, 16));
    CHECK_FALSE(index.note(1, pages[0], 0, 8));
    REQUIRE(note(index, 1, pages, 0, 40));
    CHECK(index.chunks(1, a, 0).size() == 1);
    CHECK(index.chunks(2, a, 0).empty());
    CHECK(index.chunks(0, a, 0).empty());
}

TEST_CASE("of two copies the one that continues the last chunk is taken, and either alone if the other is evicted") {
    std::mt19937 dice(3);
    auto index = kv::index::chunk{.least = 8}.open(shape, 64);
    std::uint32_t next = 0;
    const tokens a = random_tokens(dice, 37, 1000), b = random_tokens(dice, 20, 1000), c = random_tokens(dice, 5, 1000);
    const auto pages = store(index, joined({a, b}), next), other = store(index, joined({c, b}), next);
    REQUIRE(note(index, 0, pages, 0, 37));
    for (const bool other_first : {true, false}) {
        if (other_first)
            REQUIRE(note(index, 0, other, 5, 20));
        REQUIRE(note(index, 0, pages, 37, 20));
        if (!other_first)
            REQUIRE(note(index, 0, other, 5, 20));
        const auto found = index.chunks(0, joined({c, a, b}), 0);
        REQUIRE(found.size() == 2);
        CHECK(found[1].last == pages.back());
    }
    index.erase(pages.back());
    const auto found = index.chunks(0, joined({c, a, b}), 0);
    REQUIRE(found.size() == 2);
    CHECK(found[1].last == other.back());
    index.erase(other.back());
    CHECK(index.chunks(0, joined({c, a, b}), 0).size() == 1);
}

TEST_CASE("a chunk at a text's end stays known when a longer text takes its page's place") {
    std::mt19937 dice(4);
    auto index = kv::index::chunk{.least = 8}.open(shape, 64);
    std::uint32_t next = 0;
    const tokens a = random_tokens(dice, 20, 1000), b = random_tokens(dice, 20, 1000);
    const auto pages = store(index, a, next);
    REQUIRE(note(index, 0, pages, 0, 20));
    std::uint32_t fresh = 40;
    const auto run = joined({tokens(a.begin() + 16, a.end()), tokens(b.begin(), b.begin() + 12)});
    const auto done = index.insert(pages[0], run, kv::page_id{fresh});
    REQUIRE(done.other == pages[1]);
    const auto found = index.chunks(0, a, 0);
    REQUIRE(found.size() == 1);
    CHECK(found[0].last == kv::page_id{fresh});
    CHECK(lying(index, found[0]) == a);
}

TEST_CASE("under random use all that is found lies there, and a noted chunk is found while its page stays") {
    const std::uint64_t seed = GENERATE(11u, 12u, 13u);
    INFO("seed " << seed);
    std::mt19937 dice(static_cast<unsigned>(seed));
    auto index = kv::index::chunk{.least = 3}.open(shape, 400);
    std::uint32_t next = 0;
    std::set<std::uint32_t> in;
    std::vector<std::pair<tokens, kv::page_id>> noted;
    for (int round = 0; round < 300; ++round) {
        if (next < 380 && dice() % 3 > 0) {
            const tokens text = random_tokens(dice, 1 + dice() % 60, 3);
            const auto pages = store(index, text, next);
            const std::size_t first = dice() % text.size(), count = 1 + dice() % (text.size() - first);
            if (note(index, 0, pages, first, count)) {
                CHECK(count >= 3);
                noted.emplace_back(tokens(text.begin() + static_cast<std::ptrdiff_t>(first),
                                          text.begin() + static_cast<std::ptrdiff_t>(first + count)),
                                   pages[(first + count - 1) / page_tokens]);
            }
        } else if (next > 0) {
            const kv::page_id page{static_cast<std::uint32_t>(dice() % next)};
            if (index.contains(page) && index.leaf(page))
                index.erase(page);
        }
        const tokens prompt = random_tokens(dice, dice() % 200, 3);
        const std::size_t known = prompt.empty() ? 0 : dice() % prompt.size();
        std::size_t end = 0;
        for (const kv::chunk_match& one : index.chunks(0, prompt, known)) {
            REQUIRE(one.first >= end);
            end = one.first + one.count;
            REQUIRE(end > known);
            REQUIRE(lying(index, one) == tokens(prompt.begin() + static_cast<std::ptrdiff_t>(one.first),
                                                prompt.begin() + static_cast<std::ptrdiff_t>(end)));
        }
        if (!noted.empty()) {
            const auto& [text, page] = noted[dice() % noted.size()];
            if (index.contains(page) && index.run(page).size() > 0)
                REQUIRE_FALSE(index.chunks(0, text, 0).empty());
        }
    }
}
