// SPDX-License-Identifier: MIT
// After warm-up a cache in external memory allocates nothing: prompts are matched, reserved, committed, forked, evicted
// and released in memory that it has already. Where an allocation fails, nothing has changed. A separate program,
// because it replaces operator new.
#include <kvcache/cache/block_tables.hpp>
#include <kvcache/cache/compose.hpp>
#include <kvcache/codec/int8.hpp>
#include <kvcache/codec/keep_exact.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/index/hash_chain.hpp>
#include <kvcache/storage/external.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "cache/model.hpp"
#include "support/counted_new.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using kvcache_test::counted;
using kvcache_test::seeded;

namespace {

constexpr std::size_t page_tokens = 16, longest = 20 * page_tokens;

// Rounds of four live requests with common prefixes, of which some are computed at once; memory is short.
template <class Cache>
void serve(Cache& cache, seeded& choose, kv::block_tables& tables, std::span<const std::vector<kv::token_id>> prompts,
           std::size_t rounds) {
    for (std::size_t round = 0; round < rounds; ++round) {
        const auto& prompt = prompts[choose(prompts.size())];
        const auto tokens = std::span(prompt).first(1 + choose(prompt.size()));
        auto first = cache.acquire(tokens), second = cache.acquire(tokens);
        if (!first || !second)
            continue;
        first->lease.commit(tokens.subspan(first->lease.first()));
        second->lease.commit(tokens.subspan(second->lease.first()));
        auto fork = first->sequence.fork(choose(tokens.size()));
        auto lease = cache.reserve(fork, 1 + choose(30));
        if (lease)
            lease->commit(std::span(prompt).first(lease->rows()));
        tables.clear();
        for (const auto* one : {&first->sequence, &second->sequence, &fork})
            tables.append(one->table());
    }
}

// Lets each allocation of `act` fail in turn, until it has all that it asks for. Returns how many there are. Between
// these times nothing has changed.
template <class Cache, class Act>
std::size_t starve(const Cache& cache, const kv::basic_sequence<typename Cache::core_type>& sequence, Act act) {
    const std::vector<kv::token_id> tokens(sequence.tokens().begin(), sequence.tokens().end());
    const std::vector<kv::page_entry> table(sequence.table().begin(), sequence.table().end());
    for (std::size_t n = 1;; ++n) {
        CAPTURE(n);
        const kv::cache_stats before = cache.stats();
        bool failed = false;
        counted_new::fails_at = n;
        try {
            act();
        } catch (const std::bad_alloc&) {
            failed = true;
        }
        const bool reached = counted_new::fails_at == 0;
        counted_new::fails_at = 0;
        REQUIRE(cache.check());
        if (!reached)
            return n - 1;
        if (!failed)
            continue; // an allocation that it can do without
        REQUIRE(kvcache::ranges::equal(sequence.tokens(), tokens));
        REQUIRE(kvcache::ranges::equal(sequence.table(), table));
        const kv::cache_stats after = cache.stats();
        REQUIRE(after.sequences == before.sequences);
        REQUIRE(after.in_use == before.in_use);
        REQUIRE(after.residual_pages == before.residual_pages);
    }
}

} // namespace

TEMPLATE_TEST_CASE("a cache in external memory allocates nothing after warm-up", "", kv::index::radix,
                   kv::index::hash_chain) {
    for (const bool merge : {false, true}) {
        auto cache = kv::make_cache(
            {.shape = {.tokens = page_tokens}, .limit = {.pages = 100}, .merge_equal_pages = merge}, TestType{},
            kv::storage::external{.copy = [](kv::page_id, kv::page_id) { return true; },
                                  .on_move = [](const kv::moved_entry&) {}});
        seeded choose(3);
        std::vector<std::vector<kv::token_id>> prompts;
        for (int number = 0; number < 40; ++number) {
            prompts.push_back(counted(number % 4 * 1000, longest / 2));
            const auto own = counted(10'000 * (number + 1), longest / 2);
            prompts.back().insert(prompts.back().end(), own.begin(), own.end());
        }
        kv::block_tables tables(page_tokens);
        serve(cache, choose, tables, prompts, 2000);
        const std::size_t before = counted_new::allocations;
        serve(cache, choose, tables, prompts, 2000);
        CHECK(counted_new::allocations == before);
        CHECK(cache.check());
    }
}

TEMPLATE_TEST_CASE("where an allocation fails nothing has changed", "", kv::codec::f32,
                   kv::codec::keep_recent<kv::codec::int8>) {
    const bool merge = GENERATE(false, true);
    auto cache = kv::make_cache({.shape = {.layers = 1, .kv_heads = 1, .head_dim = 16, .tokens = page_tokens},
                                 .limit = {.pages = 200},
                                 .tenants = 0,
                                 .merge_equal_pages = merge},
                                TestType{});
    const auto prompt = counted(0, 100), more = counted(500, 70);
    const std::vector<float> row(16, 1.0f);
    auto sequence = cache.open();
    const auto extend = [&](auto& one, std::span<const kv::token_id> tokens) {
        auto lease = cache.reserve(one, tokens.size());
        REQUIRE(lease);
        for (std::size_t r = 0; r < tokens.size(); ++r)
            lease->write(kv::layer_id{0}, r, row, row);
        lease->commit(tokens);
    };
    extend(sequence, prompt);
    const auto other = sequence.fork(60);
    CHECK(starve(cache, sequence, [&] { static_cast<void>(cache.open(prompt)); }) > 0);
    CHECK(starve(cache, sequence, [&] { static_cast<void>(cache.reserve(sequence, 300)); }) > 0);
    starve(cache, sequence, [&] { static_cast<void>(sequence.fork(50)); });
    starve(cache, sequence, [&] { static_cast<void>(cache.acquire(more)); });
    if constexpr (decltype(cache)::writes_rows) {
        CHECK(starve(cache, sequence, [&] { static_cast<void>(sequence.erase_range(10, 20)); }) > 0);
    }
    const kv::reservation<decltype(cache)> batch[] = {{.to = &sequence, .rows = 40}};
    CHECK(starve(cache, sequence, [&] { static_cast<void>(cache.reserve(batch)); }) > 0);
    extend(sequence, more);
    CHECK(cache.check());
}
