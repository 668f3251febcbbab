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
        if (layout.groups.back().kind() != kvcache::group_kind::window)
            continue;
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

TEST_CASE("a replay of recurrent layers reuses prompts up to their snapshots") {
    const kvcache::cache_layout layout = bench::model_layouts().at("qwen3.5-9b");
    const std::size_t state = layout.groups.back().state_bytes;
    const std::size_t bytes = layout.bytes(0, 3000, 2) * 4 + 24 * state;
    bench::group_replay ends(layout, {.bytes = bytes, .batch = 100, .snapshots = {.before_end = 0}});
    CHECK(ends.run(request(0, 2000)) == 0);
    CHECK(ends.run(request(0, 2000)) == 1984);
    CHECK(ends.run(request(0, 2010)) == 1984);
    CHECK(ends.run(request(0, 1990)) == 1984);
    CHECK(ends.run(request(0, 1000)) == 0); // there is no snapshot as early
    CHECK(ends.run(request(0, 1000)) == 992);
    CHECK(ends.check().has_value());
    CHECK(ends.groups()[1].bytes == 3 * state); // after 1984, 2000 and 992 tokens
    CHECK(ends.groups()[0].bytes == layout.bytes(0, 2010, 2) + layout.bytes(0, 16, 2)); // the last one's own page
    CHECK(ends.refused() == 0);

    bench::group_replay every(layout, {.bytes = bytes, .batch = 100, .snapshots = {.before_end = 64, .every = 25}});
    CHECK(every.run(request(0, 2000)) == 0);
    CHECK(every.groups()[1].bytes == 6 * state); // after 400, 800, 1200, 1600, 1920 and 1984 tokens
    CHECK(every.run(request(0, 1000)) == 800);
    CHECK(every.run(request(0, 1950)) == 1920);
    CHECK(every.check().has_value());

    bench::group_replay none(
        layout, {.bytes = bytes, .batch = 100, .snapshots = {.ends = false, .branches = false, .before_end = 0}});
    CHECK(none.run(request(0, 2000)) == 0);
    CHECK(none.run(request(0, 2000)) == 0);
    CHECK(none.groups()[1].bytes == 0);
}

TEST_CASE("a prompt whose states are missing is computed again, in one copy if equal pages merge") {
    const kvcache::cache_layout layout = bench::model_layouts().at("qwen3.5-9b");
    const std::size_t bytes = layout.bytes(0, 3000, 2);
    for (const bool merge : {true, false}) {
        bench::group_replay to(layout, {.bytes = bytes,
                                        .batch = 100,
                                        .snapshots = {.ends = false, .branches = false, .before_end = 0},
                                        .merge_equal_pages = merge});
        CHECK(to.run(request(0, 2000)) == 0);
        if (merge)
            CHECK(to.run(request(0, 2000)) == 0);
        else
            CHECK_THROWS_AS(to.run(request(0, 2000)), std::runtime_error); // the cached pages are held as well
    }
}

TEST_CASE("of windows that are not kept the last one is found") {
    const kvcache::cache_layout layout = bench::model_layouts().at("gemma-3-270m");
    const std::uint64_t bytes = 4 * layout.bytes(3000, 2);
    bench::group_replay keeps(layout, {.bytes = bytes, .batch = 100}),
        drops(layout, {.bytes = bytes, .batch = 100, .keep_released = false});
    for (bench::group_replay* to : {&keeps, &drops})
        CHECK(to->run(request(0, 3000)) == 0);
    CHECK(keeps.run(request(0, 1000)) == 999);
    CHECK(keeps.run(request(0, 3000)) == 2999);
    CHECK(drops.run(request(0, 1000)) == 0);
    CHECK(drops.run(request(0, 3000)) == 2999);
}
