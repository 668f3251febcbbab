// SPDX-License-Identifier: MIT
#include <kvcache/cache/invariants.hpp>
#include <kvcache/cache/page_manager.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/eviction/tail_safe_lru.hpp>

#include <map>

#include "cache/matching.hpp"
#include "cache/model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache_test;

namespace {

constexpr kv::page_shape shape{.layers = 1, .kv_heads = 1, .head_dim = 4, .tokens = 16};

/// Records the calls of an eviction policy.
struct noting {
    using role = kv::eviction_role;
    using notes = std::map<kv::slot_id, kv::eviction_entry>;
    notes* ranked = nullptr;
    struct state {
        kv::eviction::lru::state inner;
        notes* ranked;
        void admit(kv::slot_id slot, const kv::eviction_entry& newcomer) {
            inner.admit(slot, newcomer);
            (*ranked)[slot] = newcomer;
        }
        void touch(kv::slot_id slot) { inner.touch(slot); }
        void erase(kv::slot_id slot) {
            inner.erase(slot);
            ranked->erase(slot);
        }
        [[nodiscard]] std::optional<kv::slot_id> victim(const auto& is_evictable) { return inner.victim(is_evictable); }
    };
    [[nodiscard]] state open(kv::eviction_capacity capacity) const {
        return {kv::eviction::lru{}.open(capacity), ranked};
    }
};

} // namespace

TEST_CASE("an entry is ranked under the digest of all tokens up to its end") {
    noting::notes ranked;
    auto cache = kv::make_cache({shape, {8 * kv::codec::f32{}.open(shape).page_bytes()}}, noting{&ranked});
    const auto tokens = counted(0, 40);
    const auto hash = kv::hash::xxh3{}.open(cache.id());
    std::vector<kv::page_entry> table;
    for (const std::size_t length : {10u, 16u, 20u, 40u}) { // grown in steps, idle in between
        auto found = match_in(cache, tokens);
        const std::size_t known = found.tokens();
        auto a = open_at(cache, std::move(found), {known, 0});
        past one;
        for (std::size_t i = 0; i < known; ++i)
            one.push(tokens[i]);
        REQUIRE(append(cache, a, one, std::span(tokens).subspan(known, length - known)));
        table.assign(a.table().begin(), a.table().end());
    }
    kv::digest before = hash.root();
    std::optional<kv::slot_id> parent;
    for (std::size_t i = 0; i < table.size(); ++i) {
        const auto run = std::span<const kv::token_id>(tokens).subspan(16 * i, table[i].count);
        before = hash.chain(before, run);
        const kv::slot_id slot{kv::index_of(table[i].page)};
        REQUIRE(ranked.contains(slot));
        CHECK(ranked[slot].key == before.low);
        CHECK(ranked[slot].cost > 0.0);
        CHECK(ranked[slot].depth == i);
        CHECK(ranked[slot].length == (i < 2 ? 2u : 3u)); // full pages of the request; then the partial page after them
        CHECK(ranked[slot].bytes == cache.stats().page_bytes);
        CHECK(ranked[slot].parent == parent);
        parent = slot;
    }
    CHECK(ranked.size() == table.size());
}

TEST_CASE("an entry states the length of its request, and costs no less than those before it") {
    noting::notes ranked;
    auto cache = kv::make_cache({shape, {16 * kv::codec::f32{}.open(shape).page_bytes()}}, noting{&ranked});
    const auto tokens = counted(0, 100);
    auto found = match_in(cache, tokens);
    auto one = open_at(cache, std::move(found), {0, 100});
    past own;
    REQUIRE(append(cache, one, own, std::span(tokens).first(40))); // in two prefills
    for (const auto& [slot, entry] : ranked)
        CHECK(entry.length == 6);
    REQUIRE(append(cache, one, own, std::span(tokens).subspan(40)));
    REQUIRE(ranked.size() == 6);
    double before = 0.0;
    for (const auto& entry : one.table().subspan(3, 3)) {
        const kv::eviction_entry& told = ranked[kv::slot_id{kv::index_of(entry.page)}];
        CHECK(told.length == 6);
        CHECK(told.cost >= before);
        before = told.cost;
    }
    CHECK(before > 0.0);
    REQUIRE(append(cache, one, own, counted(500, 30))); // beyond the prompt: generated tokens
    CHECK(ranked[kv::slot_id{kv::index_of(one.table()[7].page)}].length == 8);
    auto none = cache.open();
    past other;
    REQUIRE(append(cache, none, other, counted(1000, 33))); // a request that was not matched before
    CHECK(ranked[kv::slot_id{kv::index_of(none.table()[0].page)}].length == 2);
}

TEST_CASE("in a cache, tail-safe lru keeps of each conversation what its next turn needs") {
    const auto known = [](const auto& eviction, std::int32_t of) {
        auto cache = kv::make_cache({shape, {12 * kv::codec::f32{}.open(shape).page_bytes()}}, eviction);
        for (const auto& [first, tokens] : {std::pair{0, 96u}, std::pair{1000, 96u}, std::pair{2000, 64u}}) {
            const auto prompt = counted(first, tokens);
            auto sequence = open_at(cache, match_in(cache, prompt), {0, tokens});
            past own;
            REQUIRE(append(cache, sequence, own, prompt));
        }
        return cache.lookup(counted(of, 96)).cached_tokens;
    };
    const kv::eviction::tail_safe_lru tail{.budget = 4, .next_turn = 2};
    CHECK(known(tail, 0) == 64);
    CHECK(known(tail, 1000) == 64);
    CHECK(known(kv::eviction::lru{}, 0) == 32);
    CHECK(known(kv::eviction::lru{}, 1000) == 96);
}

TEST_CASE("counts that disagree are found") {
    kv::page_manager<kv::storage::heap::state, kv::hash::xxh3::state, kv::index::radix::state, kv::eviction::lru::state,
                     kv::observer::none::state, kv::page_content::rows>
        manager({shape, 4, 64}, {}, kv::detail::compose<kv::eviction::lru>::policies{});
    const auto page = manager.allocate(0);
    REQUIRE(page);
    std::vector<std::uint32_t> held(4, 0);
    CHECK(kv::detail::check_pages(manager, held, shape.tokens).error().message ==
          "the page counts 1 holders and has 0");
    held[kv::index_of(*page)] = 1;
    CHECK(kv::detail::check_pages(manager, held, shape.tokens));
    CHECK(manager.publish({}, counted(0, 16), *page, 1) == *page);
    manager.drop(*page);
    held[kv::index_of(*page)] = 0;
    CHECK(kv::detail::check_pages(manager, held, shape.tokens));
    CHECK(manager.evictable() == 1);
    CHECK(manager.available() == 4);
}
