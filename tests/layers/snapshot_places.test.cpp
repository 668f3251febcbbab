// SPDX-License-Identifier: MIT
#include <kvcache/cache/snapshot_places.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "layers/group_model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache_test;
using places = std::vector<std::size_t>;

namespace {

// A prompt of which so many tokens are known, and would be to the other groups.
kv::lookup_result known(std::size_t prompt, std::size_t cached, std::size_t others) {
    kv::lookup_result made{.prompt_tokens = prompt, .cached_tokens = cached, .common_prefix = others};
    if (others > cached)
        made.limiting_group = 1;
    made.other_groups_tokens = others;
    return made;
}

// A host with recurrent layers: runs prompts with snapshots where the policy wants them.
struct recurrent_host {
    group_host host;
    std::size_t batch; // rows at a time
    kv::snapshot_places where = {};
    kv::cache<kv::storage::external, kv::layers::grouped, kv::eviction::lru> cache;

    explicit recurrent_host(kv::cache_layout layout = {16, {full(), state()}}, std::size_t rows = 1 << 20)
        : host(std::move(layout)),
          batch(rows),
          cache(kv::make_cache({.limit = {.bytes = 1 << 24}},
                               pages_of(host, groups_of(host).paged().value_or(host.layout().groups.size())),
                               groups_of(host), kv::eviction::lru{})) {}

    // Returns the number of tokens that were computed.
    std::size_t run(const past& tokens) {
        auto got = cache.acquire(tokens.tokens);
        REQUIRE(got.has_value());
        const std::size_t known = got->lease.first(), size = host.layout().tokens;
        read_groups(host, cache, got->sequence, tokens.first(known), false);
        const auto snapshots = where.of(got->found, size);
        got->lease.rollback();
        for (std::size_t first = known; first < tokens.size();) {
            const std::size_t end = std::min(tokens.size(), first + batch);
            auto lease = cache.reserve(got->sequence, end - first);
            REQUIRE(lease.has_value());
            write_groups(host, *lease, tokens.first(end));
            for (std::size_t group = 0; group < host.layout().groups.size(); ++group)
                for (const std::size_t at : snapshots)
                    if (host.layout().groups[group].kind() == kv::group_kind::state && at > first && at <= end)
                        host.row(group, static_cast<std::int32_t>(*lease->snapshot(group, at)), 0) =
                            tokens.names[at - 1];
            lease->commit(std::span(tokens.tokens).subspan(first, end - first));
            first = end;
        }
        CHECK(cache.check().has_value());
        return tokens.size() - known;
    }
};

past edited(const past& of, std::size_t at, std::size_t more, int with) {
    past made = of.first(at);
    for (std::size_t i = 0; i < more; ++i)
        made.push(kv::token_id{with + static_cast<std::int32_t>(i)});
    return made;
}

} // namespace

TEST_CASE("what follows a prompt leaves snapshots at intervals and at the end of a part") {
    const kv::snapshot_places often{}, ends{.answers = 0}, never{.ends = false, .answers = 0};
    CHECK(often.after_prompt(64, 63, 64, 16)); // an answer, token by token
    CHECK(!often.after_prompt(80, 79, 80, 16));
    CHECK(!ends.after_prompt(64, 63, 64, 16));
    for (const std::size_t at : {16u, 32u, 48u, 64u, 80u, 96u}) { // several tokens that end at 90, and at 96
        CHECK(ends.after_prompt(at, 10, 90, 16) == (at == 80));
        CHECK(ends.after_prompt(at, 10, 96, 16) == (at == 80)); // leaves the last token to compute
        CHECK(!never.after_prompt(at, 10, 90, 16));
    }
}

TEST_CASE("snapshots are placed where pages end, before the last token and after the known ones") {
    CHECK(kv::snapshot_places{}.of(known(0, 0, 0), 16).empty());
    CHECK(kv::snapshot_places{}.of(known(1, 0, 0), 1).empty());
    CHECK(kv::snapshot_places{}.of(known(16, 0, 0), 16).empty());
    CHECK(kv::snapshot_places{}.of(known(17, 0, 0), 16) == places{16});
    CHECK(kv::snapshot_places{}.of(known(100, 0, 0), 16) == places{96});
    CHECK(kv::snapshot_places{}.of(known(100, 96, 96), 16).empty());
    CHECK(kv::snapshot_places{}.of(known(100, 16, 70), 16) == places{64, 96});
    CHECK(kv::snapshot_places{}.of(known(1000, 0, 0), 16) == places{480, 992}); // 512 tokens before the last page
    CHECK(kv::snapshot_places{.before_end = 40}.of(known(100, 0, 0), 16) == places{64, 96});
    CHECK(kv::snapshot_places{.before_end = 96}.of(known(100, 0, 0), 16) == places{96});
    CHECK(kv::snapshot_places{.branches = false}.of(known(100, 16, 70), 16) == places{96});
    CHECK(kv::snapshot_places{.ends = false, .branches = false}.of(known(100, 16, 70), 16).empty());
    CHECK(kv::snapshot_places{.every = 2}.of(known(100, 33, 33), 16) == places{64, 96});
    CHECK(kv::snapshot_places{.ends = false, .every = 4}.of(known(200, 0, 0), 16) == places{64, 128, 192});
    CHECK(kv::snapshot_places{.doubling = true}.of(known(161, 0, 0), 16) == places{32, 96, 128, 144, 160});
    for (std::size_t prompt = 0; prompt < 300; ++prompt)
        for (const std::size_t cached : {0u, 16u, 64u, 160u})
            for (const std::size_t at :
                 kv::snapshot_places{.every = 3, .doubling = true}.of(known(prompt, cached, prompt), 16))
                if (at % 16 != 0 || at <= cached || at >= prompt)
                    FAIL("a snapshot after " << at << " of " << prompt << " tokens, " << cached << " known");
}

TEST_CASE("after an edit at most an interval and what follows are computed again, and the second time only that") {
    const past whole = edited({}, 0, 4096, 1);
    for (const std::size_t every : {8u, 16u, 64u}) {
        recurrent_host all;
        all.where.every = every;
        CHECK(all.run(whole) == 4096);
        int with = 100000;
        for (const std::size_t at : {5u, 100u, 1000u, 2047u, 2048u, 2049u, 4000u}) {
            const std::size_t first = all.run(edited(whole, at, 50, with += 1000));
            const std::size_t second = all.run(edited(whole, at, 50, with += 1000));
            CHECK(first <= every * 16 + 50);
            CHECK(second == at % 16 + 50); // the snapshot where the first one parted
        }
    }
}

TEST_CASE("in any layout with states an edit of a prompt of 4,096 tokens computes an interval and its tail") {
    const past whole = edited({}, 0, 4096, 1);
    const std::vector<kv::layer_group> layouts[] = {
        {full(), state()},
        {full(), window(100), state(), {.layers = 1, .alias_of = 1}, state(200)},
        {window(512), state(64)}};
    for (const std::uint32_t page : {16u, 64u})
        for (const auto& groups : layouts)
            for (const std::size_t every : {2u, 32u})
                for (const std::size_t batch : {300u, 1u << 20}) {
                    recurrent_host all({page, groups}, batch);
                    INFO(all.host.layout().name()
                         << "; pages of " << page << ", a snapshot each " << every << ", " << batch << " rows at once");
                    all.where.every = every;
                    CHECK(all.run(whole) == 4096);
                    for (const std::size_t at : {1u, 64u, 65u, 1000u, 2048u, 4095u}) {
                        past changed = edited(whole, at, 1, -1), longer = edited(whole, at, 1, -2),
                             shorter = whole.first(at);
                        for (std::size_t i = at + 1; i < whole.size(); ++i) {
                            changed.push(whole.tokens[i]);
                            longer.push(whole.tokens[i - 1]);
                            shorter.push(whole.tokens[i]);
                        }
                        const std::size_t first = all.run(changed);
                        CHECK(first >= 4096 - at);
                        CHECK(first <= every * page + 4096 - at);
                        // The others part where the first one did, and left a snapshot.
                        CHECK(all.run(longer) == longer.size() - at + at % page);
                        if (shorter.size() > at)
                            CHECK(all.run(shorter) == shorter.size() - at + at % page);
                        CHECK(all.run(changed) <= page); // and the same one again, its last page
                    }
                }
}

TEST_CASE("without intervals the second prompt that parts at a place computes its own tail alone") {
    const past whole = edited({}, 0, 4096, 1);
    for (const std::uint32_t page : {16u, 64u}) {
        recurrent_host all({page, {full(), window(200), state()}}, 512);
        CHECK(all.run(whole) == 4096);
        int with = 100000;
        for (const std::size_t at : {4000u, 2048u, 2047u, 1000u, 100u}) {
            CHECK(all.run(edited(whole, at, 700, with += 1000)) <= at + 700); // there was no snapshot before it
            for (int more = 0; more < 3; ++more)
                CHECK(all.run(edited(whole, at, 700, with += 1000)) == 700 + at % page);
        }
    }
}

TEST_CASE("with doubling distances an edit computes no more than twice what follows it, and two pages") {
    const past whole = edited({}, 0, 4096, 1);
    recurrent_host all;
    all.where = {.branches = false, .doubling = true};
    static_cast<void>(all.run(whole));
    CHECK(all.cache.core().pages().blocks().idle() / 600 == 9); // snapshots: the last page end and 8 before it
    int with = 100000;
    for (std::size_t at = 17; at < 4096; at += 61) {
        const std::size_t again = all.run(edited(whole, at, 1, with += 10)) - 1;
        if (again > 2 * (4096 - at) + 32)
            FAIL(again << " tokens again for an edit after " << at);
    }
}
