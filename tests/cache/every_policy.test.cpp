// SPDX-License-Identifier: MIT
#include <kvcache/cache/any_cache.hpp>
#include <kvcache/codec/row_major.hpp>
#include <kvcache/core/type_name.hpp>
#include <kvcache/hash/all.hpp>
#include <kvcache/index/all.hpp>
#include <kvcache/storage/all.hpp>
#include <kvcache/testing/fault_injecting.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>

#include "cache/matching.hpp"
#include "model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache_test;

namespace {

/// A 16-bit hash, so that names collide often.
struct truncated {
    using role = kv::hash_role;
    struct state {
        kv::hash::xxh3::state inner;
        [[nodiscard]] kv::digest root() const { return cut(inner.root()); }
        [[nodiscard]] kv::digest chain(kv::digest before, std::span<const kv::token_id> run) const {
            return cut(inner.chain(before, run));
        }
        static kv::digest cut(kv::digest whole) { return {whole.low & 0xffff, 0}; }
    };
    [[nodiscard]] state open(const kv::identity& id) const { return {kv::hash::xxh3{}.open(id)}; }
};

/// Refuses every fifth page.
struct failing_often {
    using role = kv::storage_role;
    using state = kv::testing::fault_injecting_storage<>::state;
    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const {
        return kv::testing::fault_injecting_storage<>{.every = 5}.open(pages, page_bytes);
    }
};

// Chosen by name: separate cache types would prove no more, and take long to compile.
using storages =
    decltype(std::tuple_cat(std::declval<kv::storage_policies>(), std::declval<std::tuple<failing_often>>()));
using any_storage = kv::any_storage<storages>;
using any_hash = kv::any_hash<std::tuple<kv::hash::xxh3, truncated>>;

template <class Storage>
const any_storage chosen_storage = *any_storage::named(kv::type_name<Storage>());
template <class Hash>
const any_hash chosen_hash = *any_hash::named(kv::type_name<Hash>());

template <class Storage, class Hash, class Index>
void run(std::uint64_t seed, std::size_t rounds, Index index) {
    INFO("seed " << seed << ", " << kv::type_name<Storage>());
    constexpr kv::page_shape shape{2, 2, 16, 16};
    constexpr std::size_t page_bytes = sizeof(float) * 2 * 2 * 2 * 16 * 16;
    auto cache = kv::make_cache({shape, {.bytes = 9 * page_bytes}}, chosen_storage<Storage>, chosen_hash<Hash>, index);
    using model = cache_model<decltype(cache), seeded>;
    model played(cache, seeded(seed), {.storage_fails = std::is_same_v<Storage, failing_often>});
    played.run(rounds);
    CHECK(played.reused() > 0);
}

} // namespace

TEMPLATE_LIST_TEST_CASE("a cache on any storage agrees with a naive model", "", storages) {
    run<TestType, kv::hash::xxh3>(1, 1500, kv::index::radix{});
}

TEMPLATE_LIST_TEST_CASE("a cache with any index agrees with a naive model", "", kv::index_policies) {
    for (std::uint64_t seed = 0; seed < 3; ++seed)
        run<kv::storage::heap, kv::hash::xxh3>(seed, 1500, TestType{});
}

TEMPLATE_TEST_CASE("row-major pages of any number of tokens agree with a naive model", "", kv::codec::nhd_f32,
                   kv::codec::hnd_f32) {
    for (const std::uint32_t tokens : {1u, 4u, 12u, 16u, 33u}) {
        INFO("pages of " << tokens);
        auto cache = kv::make_cache({{2, 2, 16, tokens}, {.pages = 300 / tokens}}, TestType{});
        cache_model<decltype(cache), seeded> played(cache, seeded(tokens), {});
        CHECK_NOTHROW(played.run(1500));
        CHECK(played.reused() > 0);
    }
}

TEST_CASE("a codec of tiles has pages of whole tiles alone") {
    for (const std::uint32_t tokens : {1u, 12u, 33u}) {
        const auto refused = kv::open_cache({{.tokens = tokens}, {.pages = 8}});
        REQUIRE_FALSE(refused);
        CHECK(refused.error().field == "shape");
        CHECK(refused.error().message.ends_with("tokens is a multiple of 16"));
    }
    CHECK_FALSE(kv::open_cache({{.tokens = 0}, {.pages = 8}}, kv::codec::nhd_f32{}));
}

TEST_CASE("a hash of 16 bits causes no wrong reuse") {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
        run<kv::storage::heap, truncated>(seed, 1500, kv::index::radix{});
        run<kv::storage::heap, truncated>(seed, 1500, kv::index::hash_chain{.hash_bits = 16});
        run<kv::storage::heap, truncated>(seed, 1500, kv::index::hash_chain{.hash_bits = 2});
    }
}

// Far more prompts than 16-bit names, each with its own page after one of a few prefixes.
TEMPLATE_LIST_TEST_CASE("prompts whose names collide are not confused", "", kv::index_policies) {
    constexpr kv::page_shape shape{1, 1, 1, 16};
    constexpr std::size_t prompts = 100'000;
    TestType index;
    if constexpr (std::is_same_v<TestType, kv::index::hash_chain>)
        index.hash_bits = 16;
    auto cache = kv::make_cache({shape, {.bytes = (prompts + 8) * 2 * 16 * sizeof(float) * 16}},
                                chosen_storage<kv::storage::heap>, chosen_hash<truncated>, index);
    const auto prompt = [](std::size_t number) {
        auto tokens = counted(static_cast<std::int32_t>(number % 4), 16);
        auto own = counted(static_cast<std::int32_t>(number), 16);
        tokens.insert(tokens.end(), own.begin(), own.end());
        return tokens;
    };
    for (std::size_t number = 0; number < prompts; ++number) {
        const auto tokens = prompt(number);
        auto found = match_in(cache, tokens);
        REQUIRE(found.tokens() < 32);
        const std::size_t known = found.tokens();
        auto sequence = open_at(cache, std::move(found), {known, 32 - known});
        auto lease = cache.reserve(sequence, 32 - known);
        REQUIRE(lease);
        lease->declare_written();
        lease->commit(std::span(tokens).subspan(known));
    }
    for (std::size_t number = 0; number < prompts; number += 7) {
        const auto tokens = prompt(number);
        REQUIRE(cache.lookup(tokens).cached_tokens == 32);
        auto other = tokens;
        other[31] = kv::token_id{-1};
        REQUIRE(cache.lookup(other).cached_tokens == 31);
    }
    CHECK(cache.check());
}
