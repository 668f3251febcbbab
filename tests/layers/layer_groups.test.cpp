// SPDX-License-Identifier: MIT
// What went wrong in other caches of windows and states, one case each.
#include <kvcache/layer_groups.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "layers/group_model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache_test;

namespace {

past counting(std::size_t from, std::size_t count) {
    past made;
    for (std::size_t i = 0; i < count; ++i)
        made.push(kv::token_id{static_cast<std::int32_t>(from + i)});
    return made;
}

// A host, and a cache of its layout with room for everything.
struct fixture {
    group_host host;
    kv::cache<kv::storage::external, kv::layers::grouped, kv::eviction::lru> cache;

    explicit fixture(kv::cache_layout layout, bool merges = true, bool keeps = true, std::size_t bytes = 1 << 22)
        : host(std::move(layout)),
          cache(kv::make_cache({.limit = {.bytes = bytes}, .merge_equal_pages = merges}, pages_of(host, 0),
                               groups_of(host, keeps), kv::eviction::lru{})) {}

    // Computes a prompt, with a snapshot of a state group after so many tokens.
    auto run(const past& tokens, std::optional<std::size_t> group = {}, std::size_t at = 0) {
        auto got = cache.acquire(tokens.tokens);
        REQUIRE(got.has_value());
        write_groups(host, got->lease, tokens);
        if (group) {
            const auto block = got->lease.snapshot(*group, at);
            REQUIRE(block.has_value());
            host.row(*group, static_cast<std::int32_t>(*block), 0) = tokens.names[at - 1];
        }
        got->lease.commit(std::span(tokens.tokens).subspan(got->lease.first()));
        return std::move(got->sequence);
    }
    void sound() {
        const auto checked = cache.check();
        INFO((checked ? "" : checked.error().message));
        CHECK(checked.has_value());
    }
};

} // namespace

TEST_CASE("lengths around the window, in tokens and in pages, are found whole") {
    for (const std::uint32_t size : {1u, 4u, 16u})
        for (const std::uint32_t of : {1u, 2u, 15u, 16u, 17u, 32u})
            for (std::size_t n = 1; n <= of + 2 * size + 2; ++n) {
                fixture all({size, {full(), window(of)}}, true, false);
                const past tokens = counting(0, n);
                const auto first = all.run(tokens);
                read_groups(all.host, all.cache, first, tokens, true);
                past longer = tokens;
                longer.push(kv::token_id{-1});
                CHECK(all.cache.lookup(longer.tokens).cached_tokens == n);
                auto again = all.cache.acquire(longer.tokens);
                REQUIRE(again.has_value());
                CHECK(again->lease.first() == n);
                read_groups(all.host, all.cache, again->sequence, tokens, true);
                all.sound();
            }
}

TEST_CASE("a window drops nothing of a full layer") {
    fixture all({4, {full(), window(8)}}, true, false);
    const past tokens = counting(0, 100);
    const auto held = all.run(tokens);
    const auto pages = held.blocks(0), blocks = held.blocks(1, 0x7fff);
    CHECK(std::count(pages.begin(), pages.end(), -1) == 0);
    CHECK(std::count(blocks.begin(), blocks.end(), 0x7fff) == 23); // entries keep their positions
    CHECK(blocks[23] != 0x7fff);
    CHECK(all.cache.lookup(counting(0, 50).tokens).limiting_group == 1u); // its blocks are gone
    CHECK(all.cache.lookup(counting(0, 50).tokens).other_groups_tokens == 50);
    CHECK(all.cache.lookup(tokens.tokens).cached_tokens == 100);
}

TEST_CASE("the last window of a sequence that has ended is found, whether released blocks are kept or not") {
    for (const bool keeps : {true, false}) {
        fixture all({4, {full(), window(8)}}, true, keeps);
        const past tokens = counting(0, 100);
        for (std::size_t n : {50u, 100u}) {
            static_cast<void>(all.run(tokens.first(n)));
            all.sound();
            const auto of = all.cache.group_stats()[1];
            CHECK(of.in_use == 0);
            if (!keeps)
                CHECK(of.evictable == (n == 50 ? 3 : 2)); // the entries from 10 to 12, and 23 and 24
        }
        past longer = tokens;
        longer.push(kv::token_id{-1});
        const auto got = all.cache.acquire(longer.tokens);
        REQUIRE(got.has_value());
        CHECK(got->lease.first() == 100);
        read_groups(all.host, all.cache, got->sequence, tokens, true);
        CHECK(all.cache.lookup(counting(0, 60).tokens).cached_tokens == (keeps ? 60 : 0));
    }
}

TEST_CASE("a hit on a whole prompt runs its last token once, also for a state") {
    fixture all({4, {full(), state()}});
    const past tokens = counting(0, 16);
    static_cast<void>(
        all.run(tokens, 1, 16)); // a snapshot after the last token, which no prompt of this length can use
    CHECK(all.cache.acquire(tokens.tokens)->lease.first() == 0);
    static_cast<void>(all.run(tokens, 1, 12));
    const auto got = all.cache.acquire(tokens.tokens);
    CHECK(got->lease.first() == 12);
    CHECK(all.cache.lookup(counting(0, 20).tokens).cached_tokens == 16);
    CHECK(got->found.explain() == "12 of 16 tokens known; layer group 1 can continue no more, the others 15");
}

TEST_CASE("a request that is aborted leaves nothing known") {
    fixture all({4, {full(), window(6), state()}});
    const past tokens = counting(0, 40);
    {
        auto got = all.cache.acquire(tokens.tokens);
        write_groups(all.host, got->lease, tokens);
        CHECK(got->lease.snapshot(2, 40).has_value());
        got->lease.rollback();
        all.sound();
    }
    CHECK(all.cache.lookup(tokens.tokens).cached_tokens == 0);
    CHECK(all.cache.core().pages().blocks().used() == 0);
}

TEST_CASE("of two prompts computed at once the blocks of either serve the next") {
    for (const bool merges : {true, false}) {
        fixture all({4, {full(), window(6), state()}}, merges);
        const past tokens = counting(0, 42);
        auto a = all.cache.acquire(tokens.tokens), b = all.cache.acquire(tokens.tokens);
        for (auto* one : {&*a, &*b})
            write_groups(all.host, one->lease, tokens);
        const auto block = b->lease.snapshot(2, 40); // the second alone
        all.host.row(2, static_cast<std::int32_t>(*block), 0) = tokens.names[39];
        a->lease.commit(tokens.tokens);
        all.sound();
        b->lease.commit(tokens.tokens);
        all.sound();
        read_groups(all.host, all.cache, a->sequence, tokens, true);
        read_groups(all.host, all.cache, b->sequence, tokens, true);
        { const auto ended = std::move(b->sequence); }
        all.sound();
        read_groups(all.host, all.cache, a->sequence, tokens, true);
        const auto next = all.cache.acquire(tokens.tokens);
        CHECK(next->lease.first() == 40);
        read_groups(all.host, all.cache, next->sequence, tokens.first(40), false);
        all.sound();
    }
}

TEST_CASE("a block that two pages share is copied before a row of it is written") {
    fixture all({4, {full(), window(2)}}, false, false);
    const past tokens = counting(0, 16);
    auto b = all.cache.acquire(tokens.tokens);
    static_cast<void>(all.run(counting(0, 24))); // the window blocks of these tokens are freed
    write_groups(all.host, b->lease, tokens);
    b->lease.commit(tokens.tokens); // the known pages get the blocks of these
    b->sequence.truncate(14);
    past other = tokens.first(14);
    other.push(kv::token_id{-1});
    other.push(kv::token_id{-2});
    auto lease = all.cache.reserve(b->sequence, 2);
    REQUIRE(lease.has_value());
    write_groups(all.host, *lease, other);
    lease->commit(std::span(other.tokens).subspan(14));
    read_groups(all.host, all.cache, b->sequence, other, true);
    past longer = tokens;
    longer.push(kv::token_id{-3});
    const auto got = all.cache.acquire(longer.tokens);
    read_groups(all.host, all.cache, got->sequence, tokens.first(got->lease.first()), true); // none, or what they were
    all.sound();
}

TEST_CASE("drafted tokens that are rejected leave windows and states as they were") {
    fixture all({4, {full(), window(9), state()}});
    past tokens = counting(0, 30);
    auto sequence = all.run(tokens);
    for (std::size_t accepted = 0; accepted <= 12; ++accepted) {
        past draft = tokens;
        for (std::size_t i = 0; i < 12; ++i)
            draft.push(kv::token_id{static_cast<std::int32_t>(1000 * accepted + i)});
        auto lease = all.cache.reserve(sequence, 12);
        REQUIRE(lease.has_value());
        write_groups(all.host, *lease, draft);
        const std::size_t at = (tokens.size() / 4 + 1) * 4;
        const auto block = lease->snapshot(2, at);
        REQUIRE(block.has_value());
        all.host.row(2, static_cast<std::int32_t>(*block), 0) = draft.names[at - 1];
        lease->commit(std::span(draft.tokens).subspan(tokens.size(), accepted));
        tokens = draft.first(tokens.size() + accepted);
        read_groups(all.host, all.cache, sequence, tokens, true);
        all.sound();
        past longer = tokens;
        longer.push(kv::token_id{-1});
        const std::size_t known = all.cache.lookup(longer.tokens).cached_tokens;
        CHECK((known == at || known < at));
        CHECK((known == at) == (tokens.size() >= at));
    }
}

TEST_CASE("blocks keep the bytes of their group") {
    // As a tenth of Gemma 4: 4 KV heads of 512 in full layers, 16 of 256 in windows.
    const kv::cache_layout layout{16,
                                  {{.layers = 1, .kv_heads = 4, .head_dim = 512},
                                   {.layers = 5, .kv_heads = 16, .head_dim = 256, .window = 1024}}};
    group_host host(layout);
    auto cache = kv::make_cache({.limit = {.bytes = std::size_t{1} << 30}}, pages_of(host, 0), groups_of(host));
    past tokens = counting(0, 16);
    auto sequence = cache.open();
    for (std::size_t n = 0; n < 4096; n += 16) {
        auto lease = cache.reserve(sequence, 16);
        REQUIRE(lease.has_value());
        lease->commit(tokens.tokens);
    }
    const auto& blocks = cache.core().pages().blocks();
    CHECK(blocks.used() - blocks.idle() == layout.bytes(4096, 2));
}

TEST_CASE("blocks that no query reads are evicted before a page in use is refused") {
    fixture all({4, {full(), window(8)}}, true, true, 2 * 4 * 2 * 8 * 2 * 40);
    const past tokens = counting(0, 100);
    const auto held = all.run(tokens);
    CHECK(all.cache.core().pages().blocks().idle() > 0);
    const auto other = all.run(counting(1000, 60));
    read_groups(all.host, all.cache, held, tokens, true);
    all.sound();
}

TEST_CASE("the occupancy of a layer group says what sequences use and what stays for the next") {
    // Pages of 4 tokens, a window of 8: of 100 tokens the next query reads the last 7, which begin in entry 23.
    fixture all({4, {full(), window(8), state(), {.layers = 1, .alias_of = 0}}});
    const auto stats = [&] {
        std::vector<std::vector<std::size_t>> made;
        for (const kv::layer_group_stats& of : all.cache.group_stats())
            made.push_back({of.in_use, of.evictable});
        return made;
    };
    using numbers = std::vector<std::vector<std::size_t>>;
    CHECK(stats() == numbers{{0, 0}, {0, 0}, {0, 0}, {0, 0}});
    {
        const auto held = all.run(counting(0, 100), 2, 96);
        CHECK(stats() == numbers{{25, 0}, {2, 23}, {0, 1}, {0, 0}});
        const auto fork = held.fork(100);
        CHECK(stats() == numbers{{25, 0}, {2, 23}, {0, 1}, {0, 0}});
    }
    CHECK(stats() == numbers{{0, 25}, {0, 25}, {0, 1}, {0, 0}});

    const auto groups = all.cache.group_stats();
    CHECK(groups[1].name == "window of 8");
    CHECK(groups[1].kind == kv::group_kind::window);
    CHECK(groups[1].bytes == 25 * groups[1].block_bytes);
    std::size_t bytes = 0;
    for (const kv::layer_group_stats& of : groups)
        bytes += of.bytes;
    CHECK(bytes == all.cache.core().pages().blocks().used());
    const std::string words =
        "; window of 8: 0 blocks in use, 25 evictable, " + std::to_string(groups[1].bytes) + " bytes in all";
    CHECK(describe(all.cache).find(words) != std::string::npos);
    CHECK(describe(groups[3]) == groups[3].name + ": the blocks of another group");
}

TEST_CASE("mistakes of hosts with layer groups have defined answers") {
    fixture all({4, {full(), window(8), state(), {.layers = 1, .alias_of = 0}}});
    const past tokens = counting(0, 10);
    auto got = all.cache.acquire(tokens.tokens);
    CHECK_THROWS_AS(got->lease.snapshot(2, 6), kv::contract_violation);  // inside a page
    CHECK_THROWS_AS(got->lease.snapshot(2, 12), kv::contract_violation); // after the lease
    CHECK_THROWS_AS(got->lease.snapshot(2, 0), kv::contract_violation);  // before it
    CHECK_THROWS_AS(got->lease.snapshot(1, 8), kv::contract_violation);  // no state
    CHECK_THROWS_AS(got->lease.blocks(4), kv::contract_violation);       // no group
    CHECK(got->lease.blocks(3) == got->lease.blocks(0));
    got->lease.commit(tokens.tokens);
    CHECK_THROWS_AS(got->lease.blocks(0), kv::contract_violation); // it has ended
    CHECK_THROWS_AS(got->lease.snapshot(2, 8), kv::contract_violation);
    const auto opened = [&](kv::cache_config config, const kv::layers::grouped& grouped) {
        return kv::open_cache(std::move(config), pages_of(all.host, 0), grouped).error().field;
    };
    const auto grouped = groups_of(all.host);
    CHECK(got->sequence.erase_range(0, 2).error().code == kv::error_code::unsupported);
    CHECK(opened({.limit = {.pages = 4}}, grouped) == "limit"); // in bytes
    CHECK(opened({.limit = {.bytes = 8}}, grouped) == "limit");
    CHECK(opened({.limit = {.bytes = 1 << 20}}, {}) == "groups");
    CHECK(opened({.limit = {.bytes = 1 << 20}}, {.layout = grouped.layout}) == "copy");
    all.sound();
}
