// SPDX-License-Identifier: MIT
// Threads share a cache of layer groups that owns its memory, and a tier: each reads what was written for its prompts.
#include <kvcache/codec/row_major.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/locking/mutex.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "layers/owned_model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache_test;

namespace {

const kv::cache_layout layout{.tokens = 4, .groups = {full(), window(10), state(64), full(2)}};

using cache_type = kv::cache<kv::storage::heap, kv::codec::nhd_f32, kv::layers::grouped, kv::eviction::lru,
                             kv::tier::memory<>, kv::locking::mutex>;

// Whether the rows and the states that the next query of a sequence reads are those of its tokens.
bool reads(const cache_type& cache, const cache_type::sequence& sequence, const past& tokens) {
    owned_host host(layout);
    const std::size_t n = sequence.size();
    for (const std::size_t group : {0u, 1u, 3u}) {
        const auto blocks = sequence.blocks(group);
        for (std::size_t at = layout.groups[group].first_read(n); at < n; ++at)
            if (blocks[at / 4] < 0 || host.read(cache, group, blocks[at / 4], at % 4) != tokens.names[at])
                return false;
    }
    std::uint64_t name = 0;
    const auto state = sequence.state_of(2);
    if (n > 0 && state.size() == 64)
        std::memcpy(&name, state.data(), sizeof name);
    return n == 0 || name == tokens.names[n - 1];
}

void work(cache_type& cache, std::uint64_t seed, std::size_t rounds, std::atomic<std::size_t>& wrong,
          std::atomic<std::size_t>& hits) {
    seeded random(seed);
    owned_host host(layout);
    for (std::size_t round = 0; round < rounds; ++round) {
        past all;
        for (std::size_t i = 0; i < 40 + random(40); ++i)
            all.push(kv::token_id{static_cast<std::int32_t>(i % 20 == 0 ? random(3) : 1)});
        auto got = cache.acquire(all.tokens, {.pending = static_cast<kv::pending_prefix>(random(3))});
        if (!got)
            continue; // being computed, or no room
        wrong += !reads(cache, got->sequence, all);
        hits += got->lease.first();
        for (const std::size_t group : {0u, 1u, 3u})
            for (std::size_t row = 0; row < got->lease.rows(); ++row)
                host.write(got->lease, group, row, 0, all.names[got->lease.first() + row]);
        for (std::size_t at = got->lease.first() / 4 * 4 + 4; at <= all.size(); at += 4)
            if (const auto block = got->lease.snapshot(2, at))
                std::memcpy(got->lease.state_of(2, *block).data(), &all.names[at - 1], sizeof all.names[at - 1]);
        got->lease.commit(std::span(all.tokens).subspan(got->lease.first()));
        const auto fork = got->sequence.fork(random(all.size() + 1));
        wrong += fork.size() < all.size() && !reads(cache, fork, all);
        if (random(16) == 0)
            cache.evict(all.tokens);
    }
}

} // namespace

TEST_CASE("threads that share layer groups in the cache's memory, and a tier, read what was written") {
    auto cache = kv::make_cache({.limit = {.bytes = 100'000}, .id = {.rope = "none"}}, kv::storage::heap{},
                                kv::codec::nhd_f32{}, kv::layers::grouped{.layout = layout}, kv::eviction::lru{},
                                kv::tier::memory<>{}, kv::locking::mutex{});
    std::atomic<std::size_t> wrong = 0, hits = 0, unsound = 0;
    std::atomic<bool> ended = false;
    std::vector<std::thread> workers;
    for (std::uint64_t seed = 1; seed <= 4; ++seed)
        workers.emplace_back([&, seed] { work(cache, seed, 150, wrong, hits); });
    std::thread checker([&] {
        while (!ended)
            unsound += !cache.check();
    });
    for (std::thread& one : workers)
        one.join();
    ended = true;
    checker.join();
    CHECK(wrong == 0);
    CHECK(unsound == 0);
    CHECK(hits > 1000);
    CHECK(kv::tier_stats_of(cache).loaded_tokens > 0);
    CHECK(kv::tier_stats_of(cache).refused == 0);
}
