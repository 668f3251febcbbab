// SPDX-License-Identifier: MIT
#include <kvcache/recompute/all.hpp>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using positions = std::vector<std::size_t>;

template <class Policy>
positions chosen(const Policy& policy, const std::vector<kv::reused_span>& runs) {
    positions made;
    policy.open({.tokens = 16}).select(runs, made);
    return made;
}

positions from(std::size_t first, std::size_t count) {
    positions made(count);
    std::iota(made.begin(), made.end(), first);
    return made;
}

positions joined(positions a, const positions& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

const std::vector<kv::reused_span> two{{10, 60, 5}, {100, 20, 0}};

} // namespace

TEST_CASE("none runs nothing again, everything all") {
    CHECK(chosen(kv::recompute::none{}, two).empty());
    CHECK(chosen(kv::recompute::full{}, two) == joined(from(10, 60), from(100, 20)));
}

TEST_CASE("chunk_boundary recomputes the tokens before a chunk's end, chunk_head those after its beginning") {
    CHECK(chosen(kv::recompute::chunk_boundary{}, two) == joined(from(54, 16), from(104, 16)));
    CHECK(chosen(kv::recompute::chunk_boundary{.rows = 30}, two) == joined(from(40, 30), from(100, 20)));
    CHECK(chosen(kv::recompute::chunk_head{.rows = 4, .page_aligned = false}, two) ==
          joined(from(10, 4), from(100, 4)));
    CHECK(chosen(kv::recompute::chunk_head{.rows = 30, .page_aligned = false}, two) ==
          joined(from(10, 30), from(100, 20)));
}

TEST_CASE("an aligned head ends where a page of the run does") {
    CHECK(chosen(kv::recompute::chunk_head{.rows = 16}, two) ==
          joined(from(10, 27), from(100, 16))); // rows 5 to 32, and 0 to 16
    CHECK(chosen(kv::recompute::chunk_head{.rows = 11}, two) == joined(from(10, 11), from(100, 16)));
    CHECK(chosen(kv::recompute::chunk_head{.rows = 0}, two).empty());
}

TEST_CASE("blend runs those that are furthest off, of equal ones the earlier") {
    std::vector<float> off(80, 0.0f);
    off[3] = 2.0f;
    off[59] = 1.0f;
    off[60] = 3.0f;
    off[79] = 1.0f;
    const auto pick = [&](double fraction) {
        positions made;
        kv::recompute::blend{.fraction = fraction}.open({}).select(two, off, made);
        return made;
    };
    CHECK(pick(0.05) == positions{13, 69, 100, 119});
    CHECK(pick(0.0375) == positions{13, 69, 100});
    CHECK(pick(0.0) == positions{});
    CHECK(pick(0.001) == positions{100});
    CHECK(pick(1.0) == joined(from(10, 60), from(100, 20)));
    CHECK(pick(7.0) == joined(from(10, 60), from(100, 20)));
}

TEST_CASE("a gradual blend chooses more than it wants, and in each layer keeps those that are furthest off there") {
    const auto state = kv::recompute::gradual_blend{.fraction = 0.05, .wider = 4.0, .filters = 2}.open({.layers = 9});
    std::vector<float> off(80);
    std::iota(off.begin(), off.end(), 0.0f);
    positions made;
    state.select(two, off, made);
    CHECK(made == positions{100 + 4, 105, 106, 107, 108, 109, 110, 111, 112, 113, 114, 115, 116, 117, 118, 119});
    std::vector<float> again(16, 0.0f);
    for (const std::size_t i : {0u, 3u, 4u, 5u, 9u, 12u, 14u, 15u})
        again[i] = 1.0f;
    state.filter(0, two, again, made);
    CHECK(made == positions{104, 107, 108, 109, 113, 116, 118, 119});
    state.filter(1, two, std::vector<float>{4, 1, 3, 1, 2, 1, 0, 9}, made);
    CHECK(made == positions{104, 108, 113, 119});

    CHECK(kv::recompute::gradual_blend{.filters = 7}.open({.layers = 4}).filters() == 2);
    const auto shallow = kv::recompute::gradual_blend{.fraction = 0.05, .wider = 4.0}.open({.layers = 2});
    CHECK(shallow.filters() == 0);
    positions few;
    shallow.select(two, off, few);
    CHECK(few.size() == 4);
}
