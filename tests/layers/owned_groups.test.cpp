// SPDX-License-Identifier: MIT
// Layer groups whose pages and blocks are in the cache's own memory.
#include <kvcache/cache.hpp>
#include <kvcache/codec/row_major.hpp>
#include <kvcache/layer_groups.hpp>
#include <kvcache/storage/heap.hpp>
#include <kvcache/storage/zero_on_release.hpp>
#include <kvcache/tier.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "layers/owned_model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache_test;

TEST_CASE("sequences of layer groups read what was written, from memory that never exceeds the limit") {
    outcome all;
    for (std::uint64_t seed = 1; seed <= 60; ++seed) {
        const outcome one = seed % 2 == 0
                                ? play_owned(seed, kv::codec::nhd_f32{})
                                : play_owned(seed, kv::codec::by_group{kv::codec::hnd_bf16{}, kv::codec::nhd_f16{}});
        all.hits += one.hits;
        all.refused += one.refused;
    }
    CHECK(all.hits > 1000);
    CHECK(all.refused > 50);
}

TEST_CASE("sequences of layer groups read what was written, from memory or a tier") {
    outcome all;
    std::size_t loaded = 0;
    for (std::uint64_t seed = 1; seed <= 60; ++seed) {
        const outcome one = play_owned(seed, kv::codec::by_group{kv::codec::hnd_bf16{}, kv::codec::nhd_f32{}},
                                       kv::tier::memory{}, &loaded);
        all.hits += one.hits;
        all.refused += one.refused;
    }
    CHECK(all.hits > 1000);
    CHECK(loaded > 1000);
}

TEST_CASE("opaque states have the bytes that each snapshot says, in the budget and in a tier") {
    const kv::cache_layout layout{.tokens = 4, .groups = {full(), {.layers = 2, .opaque = true}}};
    auto cache = kv::make_cache({.limit = {.bytes = 100'000}, .id = {.rope = "none"}}, kv::codec::nhd_f32{},
                                kv::layers::grouped{.layout = layout}, kv::tier::memory{});
    owned_host host(layout);
    past tokens;
    for (int i = 0; i < 41; ++i)
        tokens.push(kv::token_id{i});
    std::size_t all = 0;
    {
        auto got = cache.acquire(tokens.tokens);
        REQUIRE(got.has_value());
        write_groups(host, got->lease, tokens);
        for (std::size_t at = 4; at <= 40; at += 4) {
            const auto block = got->lease.snapshot(1, at, 10 * at);
            REQUIRE(block.has_value());
            REQUIRE(got->lease.state_of(1, *block).size() == 10 * at);
            host.write_state(cache, got->lease, 1, *block, tokens.names[at - 1]);
            all += 10 * at;
        }
        const auto large = got->lease.snapshot(1, 40, 10 * 40);
        CHECK(large.has_value()); // the same again
        got->lease.commit(tokens.tokens);
    }
    CHECK(cache.group_stats()[1].bytes == all);
    CHECK(cache.group_stats()[1].evictable == 10);
    REQUIRE(cache.clear_all());
    CHECK(cache.group_stats()[1].bytes == 0);
    auto got = cache.acquire(tokens.tokens);
    REQUIRE(got.has_value());
    CHECK(got->lease.first() == 40);
    CHECK(got->sequence.state_of(1).size() == 400);
    read_groups(host, cache, got->sequence, tokens.first(40), false);
    CHECK(cache.check().has_value());

    got->lease.rollback();
    auto more = cache.reserve(got->sequence, 4);
    REQUIRE(more.has_value());
    const auto none = more->snapshot(1, 44, 200'000);
    REQUIRE_FALSE(none.has_value());
    CHECK(none.error().message == "there is no room for a state of 200000 bytes");
}

TEST_CASE("a group's blocks have a shape that its codec can have") {
    const kv::cache_layout layout{.tokens = 12, .groups = {full(), window(20)}};
    const kv::layers::grouped grouped{.layout = layout};
    CHECK(kv::open_cache({.limit = {.bytes = 1 << 20}}, kv::codec::nhd_f32{}, grouped).has_value());
    const auto refused = kv::open_cache({.limit = {.bytes = 1 << 20}},
                                        kv::codec::by_group{kv::codec::nhd_f32{}, kv::codec::f32{}}, grouped);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().field == "groups[1]");
}

TEST_CASE("the identity of a cache of layer groups names the formats of both its codecs") {
    const kv::layers::grouped grouped{.layout = {.tokens = 16, .groups = {full(), window(20)}}};
    const auto id_of = [&](auto codec) { return kv::make_cache({.limit = {.bytes = 1 << 20}}, codec, grouped).id(); };
    CHECK(id_of(kv::codec::by_group{kv::codec::nhd_f32{}, kv::codec::nhd_f16{}}) !=
          id_of(kv::codec::by_group{kv::codec::nhd_f32{}, kv::codec::nhd_bf16{}}));
    CHECK(id_of(kv::codec::by_group{kv::codec::nhd_f32{}, kv::codec::nhd_f32{}}) != id_of(kv::codec::nhd_f16{}));
}

TEST_CASE("the same for long", "[.long]") {
    std::size_t loaded = 0;
    for (std::uint64_t seed = 100; seed <= 1100; ++seed)
        play_owned(seed, kv::codec::nhd_f32{}, kv::tier::memory{}, &loaded);
    CHECK(loaded > 10000);
}

TEST_CASE("a block that the tier lacks, or that is not the one asked for, makes a match shorter, never wrong") {
    const kv::cache_layout layout{.tokens = 4, .groups = {full(), window(6), state(64)}};
    past tokens;
    for (int i = 0; i < 41; ++i)
        tokens.push(kv::token_id{i});
    for (const bool lacking : {true, false})
        for (const auto& [group, page, expected] : {std::tuple<std::size_t, std::size_t, std::size_t>{2, 9, 20},
                                                    {1, 9, 20},
                                                    {1, 8, 20},
                                                    {1, 7, 40},
                                                    {0, 9, 20},
                                                    {2, 4, 40}}) {
            INFO((lacking ? "lacking " : "other ") << "block of group " << group << " of page " << page);
            owned_host host(layout);
            auto cache = kv::make_cache({.limit = {.bytes = 1 << 20}, .id = {.rope = "none"}}, kv::codec::nhd_f32{},
                                        kv::layers::grouped{.layout = layout}, kv::tier::memory{});
            {
                auto got = cache.acquire(tokens.tokens);
                REQUIRE(got.has_value());
                write_groups(host, got->lease, tokens);
                for (const std::size_t at : {20, 40}) {
                    const auto block = got->lease.snapshot(2, at);
                    REQUIRE(block.has_value());
                    host.write_state(cache, got->lease, 2, *block, tokens.names[at - 1]);
                }
                // Committed in two steps, so that the tier gets the windows after 20 tokens too.
                got->lease.commit(std::span(tokens.tokens).first(20));
                auto more = cache.reserve(got->sequence, 21);
                REQUIRE(more.has_value());
                write_groups(host, *more, tokens);
                const auto block = more->snapshot(2, 40);
                REQUIRE(block.has_value());
                host.write_state(cache, *more, 2, *block, tokens.names[39]);
                more->commit(std::span(tokens.tokens).subspan(20));
            }
            REQUIRE(cache.clear_all());
            const kv::record_names names(cache.id(), "");
            auto& tier = cache.core().tier().tier();
            std::vector<kv::sha256_digest> chain{names.root()};
            for (std::size_t at = 0; at + 4 <= tokens.size(); at += 4)
                chain.push_back(names.chain(chain.back(), std::span(tokens.tokens).subspan(at, 4)));
            const auto name_of = [&](std::size_t of, std::size_t at) {
                return of == 0 ? chain[at + 1] : names.block(chain[at + 1], of);
            };
            const kv::sha256_digest name = name_of(group, page);
            const bool stored = tier.contains(name);
            CHECK(stored == (page != 7)); // no query after 40 tokens reads the window's block of page 7
            REQUIRE(tier.erase(name).has_value());
            if (!lacking) {
                std::vector<std::byte> other;
                REQUIRE(tier.read(name_of(group, 3),
                                  [&](std::span<const std::byte> bytes) { other.assign(bytes.begin(), bytes.end()); })
                            .has_value());
                const std::span<const std::byte> pieces[] = {other};
                REQUIRE(tier.put({.name = name}, pieces).has_value());
            }
            auto got = cache.acquire(tokens.tokens);
            REQUIRE(got.has_value());
            CHECK(got->lease.first() == expected);
            read_groups(host, cache, got->sequence, tokens.first(expected), false);
            CHECK(kv::tier_stats_of(cache).refused == (!lacking && expected == 20 ? 1 : 0));
            CHECK(cache.check().has_value());
        }
}

TEST_CASE("a storage that wraps another gives memory back too") {
    counting_resource memory;
    const kv::cache_layout layout{.tokens = 4, .groups = {full(), window(6), {.layers = 1, .opaque = true}}};
    auto cache = kv::make_cache({.limit = {.bytes = 100'000}},
                                kv::storage::zero_on_release<kv::storage::heap>{{.resource = &memory}},
                                kv::codec::nhd_f32{}, kv::layers::grouped{.layout = layout});
    auto got = cache.acquire(std::vector<kv::token_id>(50, kv::token_id{3}));
    REQUIRE(got.has_value());
    REQUIRE(got->lease.snapshot(2, 48, 777).has_value());
    std::size_t held = 0;
    for (const kv::layer_group_stats& of : cache.group_stats())
        held += of.bytes;
    CHECK(memory.bytes == held);
    got->lease.rollback();
    CHECK(cache.group_stats()[2].bytes == 0);
    CHECK(memory.bytes == 0);
}

TEST_CASE("a lease of rows from elsewhere has blocks for its end alone") {
    const kv::cache_layout layout{.tokens = 4, .groups = {full(), window(6)}};
    auto cache =
        kv::make_cache({.limit = {.bytes = 100'000}}, kv::codec::nhd_f32{}, kv::layers::grouped{.layout = layout});
    auto sequence = cache.open();
    auto lease = cache.reserve(sequence, 40, {.whole = true});
    REQUIRE(lease.has_value());
    const auto blocks = lease->blocks(1);
    CHECK(std::count(blocks.begin(), blocks.end(), -1) == 8);
    const std::vector<float> numbers(8);
    lease->write(1, kv::layer_id{0}, 39, numbers, numbers);
    CHECK_THROWS_AS(lease->write(1, kv::layer_id{0}, 0, numbers, numbers), kv::contract_violation);
    CHECK_THROWS_AS(lease->commit(std::vector<kv::token_id>(39)), kv::contract_violation);
    CHECK(cache.check().has_value());
}
