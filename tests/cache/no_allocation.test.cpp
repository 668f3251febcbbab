// SPDX-License-Identifier: MIT
// After warm-up a cache in external memory allocates nothing: prompts are matched, reserved, committed, forked, evicted
// and released in memory that it has already. A separate program, because it replaces operator new.
#include <kvcache/cache/block_tables.hpp>
#include <kvcache/cache/compose.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/index/hash_chain.hpp>
#include <kvcache/storage/external.hpp>

#include <cstddef>
#include <cstdint>
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
