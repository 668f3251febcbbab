// SPDX-License-Identifier: MIT
// Runs so long that several threads read them: whatever the tier does to one record, the pages before it are cached,
// and no row is wrong.
#include <kvcache/core/digest.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/locking/mutex.hpp>
#include <kvcache/tier.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "cache/matching.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using tokens = std::vector<kv::token_id>;

// A page has half a mebibyte, and a prompt 32 pages.
constexpr kv::page_shape wide{.layers = 2, .kv_heads = 2, .head_dim = 512, .tokens = 32};
constexpr std::size_t prompt_pages = 32;

enum class fault { none, lost, flipped, cut, refused, no_memory };

// A store shared by several caches, with a fault in one record, counted in the order of storing.
struct shelf {
    kv::tier::memory<>::state store = kv::tier::memory<>{.bytes = std::size_t{256} << 20}.open();
    std::mutex lock;
    std::vector<kv::sha256_digest> names;
    std::set<std::thread::id> parallel_reads;
    fault what = fault::none;
    std::size_t where = 0;
    std::uint64_t bit = 0;
    bool slow = false;

    [[nodiscard]] fault meet(const kv::sha256_digest& name) {
        {
            const std::lock_guard guard(lock);
            parallel_reads.insert(std::this_thread::get_id());
        }
        if (slow)
            std::this_thread::yield();
        return what != fault::none && name == names[where] ? what : fault::none;
    }
};

struct on_shelf {
    using role = kv::tier_role;
    shelf* of = nullptr;
    std::size_t threads = 2;
    struct state {
        shelf* of;
        std::size_t threads;
        template <class Use>
        kv::result<bool> read(const kv::sha256_digest& name, Use&& use) {
            const fault met = of->meet(name);
            if (met == fault::lost)
                return false;
            if (met == fault::refused)
                return kv::error{kv::error_code::io, "shelf", "a fault that was asked for"};
            if (met == fault::no_memory)
                throw std::bad_alloc();
            return of->store.read(name, [&](std::span<const std::byte> bytes) {
                if (met == fault::none)
                    return static_cast<void>(use(bytes));
                std::vector<std::byte> copy(bytes.begin(), bytes.end());
                if (met == fault::flipped)
                    copy[of->bit / 8 % copy.size()] ^= std::byte(1u << of->bit % 8);
                else
                    copy.resize(of->bit % copy.size());
                use(std::span<const std::byte>(copy));
            });
        }
        kv::result<void> put(const kv::tier_entry& e, std::span<const std::span<const std::byte>> p) {
            const std::lock_guard guard(of->lock);
            of->names.push_back(e.name);
            return of->store.put(e, p);
        }
        bool contains(const kv::sha256_digest& name) { return of->store.contains(name); }
        kv::result<void> erase(const kv::sha256_digest&) { return {}; } // keeps the record for the next fault
        kv::result<void> flush() { return {}; }
        kv::result<void> status() const { return {}; }
        kv::tier_counts counts() const { return of->store.counts(); }
        std::size_t parallel_reads() const { return threads; }
    };
    state open() const { return {of, threads}; }
};
static_assert(kv::tier_policy<on_shelf>);

tokens some(std::size_t count, std::uint64_t seed) {
    tokens made;
    for (std::uint64_t i = 0; i < count; ++i)
        made.push_back(kv::token_id{static_cast<std::int32_t>(kv::mix64(seed * 1000003 + i) % 1000)});
    return made;
}

// The values of a row of a layer, distinct for every position, token and layer.
void numbers(std::size_t position, kv::token_id token, std::uint32_t layer, std::span<float> to) {
    const auto begin = static_cast<std::uint32_t>(
        kv::mix64(position * 1000003 + layer * 1009 + static_cast<std::uint64_t>(index_of(token))));
    for (std::size_t i = 0; i < to.size(); ++i)
        to[i] = static_cast<float>((begin + i * 2654435761u) % 65536u);
}

template <class Cache>
void store(Cache& cache, const tokens& prompt) {
    auto sequence = cache.open();
    auto lease = cache.reserve(sequence, prompt.size());
    REQUIRE(lease);
    std::vector<float> keys(std::size_t{wide.kv_heads} * wide.head_dim), values(keys.size());
    for (std::size_t i = 0; i < prompt.size(); ++i)
        for (std::uint32_t layer = 0; layer < wide.layers; ++layer) {
            numbers(i, prompt[i], layer, keys);
            numbers(i, prompt[i], layer + 100, values);
            lease->write(kv::layer_id{layer}, i, keys, values);
        }
    lease->commit(prompt);
}

auto cache_of(shelf& from, std::size_t threads) {
    return kv::make_cache({wide,
                           {.bytes = (prompt_pages + 2) * kv::codec::f32{}.open(wide).page_bytes()},
                           kv::identity{.weights = {1, 2}}},
                          on_shelf{&from, threads}, kv::locking::mutex{});
}

// The bytes of a prompt's pages in the cache that stored it.
using content = std::vector<std::vector<std::byte>>;
template <class Cache>
content bytes_of(const Cache& cache, const typename Cache::sequence& of) {
    content made;
    for (const kv::page_entry& entry : of.table()) {
        const auto bytes = cache.storage().bytes(entry.page);
        made.emplace_back(bytes.begin(), bytes.end());
    }
    return made;
}

struct stored {
    shelf from;
    tokens prompt = some(prompt_pages * wide.tokens, 1);
    content wanted;

    stored() {
        auto first = cache_of(from, 2);
        store(first, prompt);
        wanted =
            bytes_of(first, kvcache_test::open_at(first, kvcache_test::match_in(first, prompt), {prompt.size(), 0}));
        REQUIRE(from.names.size() == prompt_pages);
    }

    // The number of pages that a new cache loads, all of them correct.
    std::size_t known(std::size_t threads, kv::tier_stats& stats) {
        from.parallel_reads.clear();
        auto cache = cache_of(from, threads);
        auto found = kvcache_test::match_in(cache, prompt);
        const std::size_t pages = found.tokens() / wide.tokens;
        REQUIRE(found.found.loaded_tokens == found.tokens());
        {
            const auto sequence = kvcache_test::open_at(cache, std::move(found), {pages * wide.tokens, 0});
            const content had = bytes_of(cache, sequence);
            REQUIRE(kvcache::ranges::equal(had, std::span(wanted).first(pages)));
        }
        stats = kv::tier_stats_of(cache);
        REQUIRE(stats.loaded_tokens == pages * wide.tokens);
        REQUIRE(cache.stats().in_use == 0);
        REQUIRE(cache.check());
        return pages;
    }
};

} // namespace

TEST_CASE("a long run is read by as many threads as the tier allows, and every byte is the one that was stored") {
    stored all;
    kv::tier_stats stats;
    for (const std::size_t threads : {0u, 1u, 2u, 3u, 64u}) {
        CAPTURE(threads);
        CHECK(all.known(threads, stats) == prompt_pages);
        CHECK(stats.hits == 1);
        CHECK(all.from.parallel_reads.size() == std::clamp<std::size_t>(threads, 1, 4)); // four mebibytes each
    }
    tokens shorter = all.prompt;
    shorter.resize(8 * wide.tokens);
    all.from.parallel_reads.clear();
    auto cache = cache_of(all.from, 2);
    CHECK(kvcache_test::match_in(cache, shorter).found.loaded_tokens == shorter.size());
    CHECK(all.from.parallel_reads.size() == 1);
}

TEST_CASE("one fault anywhere in a long run leaves what lies before it, and is counted") {
    stored all;
    kv::tier_stats stats;
    for (const fault what : {fault::lost, fault::flipped, fault::cut, fault::refused})
        for (const std::size_t where : {0u, 15u, 16u, 17u, 31u}) {
            CAPTURE(static_cast<int>(what), where);
            all.from.what = what;
            all.from.where = where;
            all.from.bit = kv::mix64(where * 7 + static_cast<std::uint64_t>(what));
            all.from.slow = where % 2 == 1;
            CHECK(all.known(2, stats) == where);
            CHECK(stats.hits == (where > 0));
            CHECK(stats.refused == (what == fault::flipped || what == fault::cut));
            if (what == fault::refused)
                CHECK(stats.failed == (where == 0 || where == 16)); // of the threads that read nothing
            CHECK(stats.last.has_value() == (stats.refused + stats.failed > 0));
        }
}

TEST_CASE("a thread that runs out of memory ends the load, and no thread waits for it") {
    stored all;
    kv::tier_stats stats;
    for (const std::size_t where : {0u, 15u, 16u, 31u}) {
        CAPTURE(where);
        all.from.what = fault::no_memory;
        all.from.where = where;
        CHECK(all.known(2, stats) == 0);
        CHECK(stats.failed == 1);
    }
    all.from.what = fault::none;
    CHECK(all.known(2, stats) == prompt_pages);
}

TEST_CASE("several threads may have long runs read at the same time") {
    stored all;
    auto cache = cache_of(all.from, 2);
    std::vector<std::thread> askers;
    for (int i = 0; i < 3; ++i)
        askers.emplace_back([&] { static_cast<void>(cache.prefetch(all.prompt)); });
    for (std::thread& each : askers)
        each.join();
    auto found = kvcache_test::match_in(cache, all.prompt);
    REQUIRE(found.tokens() == all.prompt.size());
    CHECK(bytes_of(cache, kvcache_test::open_at(cache, std::move(found), {all.prompt.size(), 0})) == all.wanted);
    CHECK(cache.check());
}
