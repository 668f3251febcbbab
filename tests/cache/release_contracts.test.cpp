// SPDX-License-Identifier: MIT
// What stays checked where contract checks are off: a program of its own, built as a release.
#include <kvcache/cache/any_cache.hpp>
#include <kvcache/cache/compose.hpp>
#include <kvcache/session/session_table.hpp>
#include <kvcache/tier.hpp>
#include <kvcache/tier/record_eviction.hpp>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

static_assert(KVCACHE_CONTRACTS == 0, "this program is built without contract checks");

namespace {

/// Names a victim that it may not.
struct wrong {
    using role = kv::eviction_role;
    kv::slot_id named = {};
    struct state {
        kv::slot_id named;
        void admit(kv::slot_id, const kv::eviction_entry&) {}
        void touch(kv::slot_id) {}
        void erase(kv::slot_id) {}
        template <class IsEvictable>
        [[nodiscard]] std::optional<kv::slot_id> victim(const IsEvictable& is_evictable) {
            (void)is_evictable(kv::slot_id{std::numeric_limits<std::uint32_t>::max()});
            return named;
        }
    };
    [[nodiscard]] state open(kv::eviction_capacity) const { return {named}; }
};
static_assert(kv::eviction_policy<wrong>);

constexpr kv::page_shape shape{.layers = 1, .kv_heads = 1, .head_dim = 4, .tokens = 16};

std::vector<kv::token_id> counted(std::int32_t first, std::size_t count) {
    std::vector<kv::token_id> made;
    for (std::size_t i = 0; i < count; ++i)
        made.push_back(kv::token_id{first + static_cast<std::int32_t>(i)});
    return made;
}

template <class Cache>
void store(Cache& cache, typename Cache::sequence& sequence, std::span<const kv::token_id> tokens) {
    auto lease = cache.reserve(sequence, tokens.size());
    lease->declare_written();
    lease->commit(tokens);
}

constexpr std::uint32_t far = 1u << 30;

} // namespace

TEST_CASE("a victim that is out of range, in use or free is a contract violation") {
    for (const std::uint32_t named : {0u, 1u, 3u, 4u, 5u, far, std::numeric_limits<std::uint32_t>::max()}) {
        INFO(named);
        auto cache = kv::make_cache({shape, {.bytes = 4 * kv::codec::f32{}.open(shape).page_bytes()}},
                                    wrong{.named = kv::slot_id{named}});
        auto kept = cache.open(); // it holds page 0
        store(cache, kept, counted(0, 16));
        {
            auto gone = cache.open(); // of page 1, an idle one with a child, and page 2, which may leave
            store(cache, gone, counted(100, 32));
        }
        auto more = cache.open();
        CHECK_THROWS_AS(cache.reserve(more, 32), kv::contract_violation);
        CHECK(cache.check());
    }
}

TEST_CASE("a session table and a tier refuse a wrong victim as well") {
    for (const std::uint32_t named : {0u, 1u, 2u, far}) {
        INFO(named);
        kv::session_table<int, wrong> table({.sessions = 2}, wrong{.named = kv::slot_id{named}});
        const auto held = table.acquire({}, "ann", [] { return std::make_unique<int>(7); });
        REQUIRE(held.has_value());
        CHECK_THROWS_AS(table.evict(), kv::contract_violation);
        CHECK(**held == 7);
        CHECK(table.size() == 1);
    }
    for (const std::uint32_t named : {1u, 2u, far}) {
        kv::tier::record_eviction<wrong> records(wrong{.named = kv::slot_id{named}}, 2, 100);
        const kv::tier_entry first{.name = {.bytes = {std::byte{1}}}}, second{.name = {.bytes = {std::byte{2}}}};
        REQUIRE_FALSE(records.victim_for(first, 80));
        records.admit(first, 80);
        CHECK_THROWS_AS(records.victim_for(second, 80), kv::contract_violation);
    }
}

TEST_CASE("a shape that is not valid opens no cache") {
    for (const kv::page_shape bad :
         {kv::page_shape{0, 1, 4, 16}, kv::page_shape{1, 0, 4, 16}, kv::page_shape{1, 1, 0, 16},
          kv::page_shape{1, 1, 4, 0}, kv::page_shape{1, 1, 4, 17}, kv::page_shape{1u << 31, 1u << 31, 4, 16},
          kv::page_shape{1, 1, 1u << 31, 1u << 31}, kv::page_shape{far, far, far, far}}) {
        CHECK_THROWS_AS(kv::make_cache({bad, {.bytes = 1 << 20}}), kv::contract_violation);
        const auto by_name = kv::open_any_cache({}, {bad, {.bytes = 1 << 20}});
        REQUIRE_FALSE(by_name.has_value());
        CHECK(by_name.error().code == kv::error_code::out_of_range);
        CHECK(by_name.error().field == "shape");
    }
}

TEST_CASE("a tier without an identity opens no cache") {
    CHECK_THROWS_AS(kv::make_cache({shape, {.bytes = 1 << 20}}, kv::tier::memory<>{}), kv::contract_violation);
    CHECK_THROWS_AS(kv::make_cache({shape, {.bytes = 1 << 20}}, kv::tier::memory<>{}), kv::contract_violation);
    CHECK_NOTHROW(kv::make_cache({shape, {.bytes = 1 << 20}, kv::identity{.config = "mine 1"}}, kv::tier::memory<>{}));
    const auto by_name = kv::open_any_cache({}, {shape, {.bytes = 1 << 20}}, kv::tier::memory<>{});
    REQUIRE_FALSE(by_name.has_value());
    CHECK(by_name.error().field == "identity");
}

TEST_CASE("after a rollback a lease commits no row, and after a commit nothing") {
    auto cache = kv::make_cache({shape, {.bytes = 1 << 20}});
    auto a = cache.open();
    const std::vector<float> row(4);
    auto lease = cache.reserve(a, 20);
    REQUIRE(lease.has_value());
    lease->rollback();
    CHECK(lease->rows() == 0);
    CHECK_NOTHROW(lease->commit({}));
    CHECK_NOTHROW(lease->rollback());
    CHECK_THROWS_AS(lease->commit(counted(0, 1)), kv::contract_violation);
    CHECK_THROWS_AS(lease->opened().commit_in_place({}), kv::contract_violation);
    CHECK_THROWS_AS(lease->pages(), kv::contract_violation);
    CHECK_THROWS_AS(lease->write(kv::layer_id{0}, 0, row, row), kv::contract_violation);
    CHECK(a.size() == 0);
    CHECK(cache.stats().in_use == 0);
    CHECK(cache.check());

    auto second = cache.reserve(a, 20);
    REQUIRE(second.has_value());
    CHECK_THROWS_AS(second->commit(counted(0, 3)), kv::contract_violation); // not written
    second->declare_written();
    second->commit(counted(0, 3));
    CHECK_THROWS_AS(second->commit({}), kv::contract_violation);
    auto moved = std::move(*second);
    CHECK_THROWS_AS(moved.commit({}), kv::contract_violation);
    CHECK(a.size() == 3);
    CHECK(cache.check());
}
