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
    kv::lookup_result made{.prompt_tokens = prompt, .cached_tokens = cached};
    if (others > cached)
        made.limiting_group = 1;
    made.other_groups_tokens = others;
    return made;
}

// A host with a recurrent layer: runs prompts with snapshots where the policy wants them.
struct recurrent_host {
    group_host host{{16, {full(), state()}}};
    kv::snapshot_places where = {};
    kv::cache<kv::storage::external, kv::layers::grouped, kv::eviction::lru> cache =
        kv::make_cache({.limit = {.bytes = 1 << 24}}, pages_of(host, 0), groups_of(host), kv::eviction::lru{});

    // Returns the number of tokens that were computed.
    std::size_t run(const past& tokens) {
        auto got = cache.acquire(tokens.tokens);
        REQUIRE(got.has_value());
        read_groups(host, got->sequence, tokens.first(got->lease.first()), false);
        write_groups(host, got->lease, tokens);
        for (const std::size_t at : where.of(got->found, 16))
            host.row(1, static_cast<std::int32_t>(*got->lease.snapshot(1, at)), 0) = tokens.names[at - 1];
        const std::size_t rows = got->lease.rows();
        got->lease.commit(std::span(tokens.tokens).subspan(got->lease.first()));
        CHECK(cache.check().has_value());
        return rows;
    }
};

past edited(const past& of, std::size_t at, std::size_t more, int with) {
    past made = of.first(at);
    for (std::size_t i = 0; i < more; ++i)
        made.push(kv::token_id{with + static_cast<std::int32_t>(i)});
    return made;
}

} // namespace

TEST_CASE("snapshots are placed where pages end, before the last token and after the known ones") {
    CHECK(kv::snapshot_places{}.of(known(0, 0, 0), 16).empty());
    CHECK(kv::snapshot_places{}.of(known(1, 0, 0), 1).empty());
    CHECK(kv::snapshot_places{}.of(known(16, 0, 0), 16).empty());
    CHECK(kv::snapshot_places{}.of(known(17, 0, 0), 16) == places{16});
    CHECK(kv::snapshot_places{}.of(known(100, 0, 0), 16) == places{96});
    CHECK(kv::snapshot_places{}.of(known(100, 96, 96), 16).empty());
    CHECK(kv::snapshot_places{}.of(known(100, 16, 70), 16) == places{64, 96});
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
