// SPDX-License-Identifier: MIT
#include <kvcache/cache/page_books.hpp>
#include <kvcache/eviction/lru.hpp>

#include <map>

#include "cache/model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache_test;

namespace {

constexpr kv::page_shape shape{.layers = 1, .kv_heads = 1, .head_dim = 4, .tokens = 16};

/// Writes down what an eviction policy is told.
struct noting {
    using role = kv::eviction_role;
    using notes = std::map<kv::slot_id, kv::entry>;
    notes* ranked = nullptr;
    struct state {
        kv::lru::state inner;
        notes* ranked;
        void admit(kv::slot_id slot, const kv::entry& newcomer) {
            inner.admit(slot, newcomer);
            (*ranked)[slot] = newcomer;
        }
        void touch(kv::slot_id slot) { inner.touch(slot); }
        void erase(kv::slot_id slot) {
            inner.erase(slot);
            ranked->erase(slot);
        }
        [[nodiscard]] std::optional<kv::slot_id> victim(const auto& may_leave) { return inner.victim(may_leave); }
    };
    [[nodiscard]] state open(kv::eviction_room room) const { return {kv::lru{}.open(room), ranked}; }
};

} // namespace

TEST_CASE("an entry is ranked under the digest of all tokens up to its end") {
    noting::notes ranked;
    auto cache = kv::make_cache(shape, {8 * kv::plain{}.open(shape).page_bytes()}, noting{&ranked});
    const auto tokens = counted(0, 40);
    const auto hash = kv::xxh3{}.open(cache.id());
    std::vector<kv::page_entry> table;
    for (const std::size_t length : {10u, 16u, 20u, 40u}) { // grown in steps, idle in between
        auto found = cache.match(tokens);
        const std::size_t known = found.tokens();
        auto a = cache.open(std::move(found), {known, 0});
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
        CHECK(ranked[slot].cost == static_cast<double>(run.size()));
        CHECK(ranked[slot].bytes == cache.stats().page_bytes);
        CHECK(ranked[slot].parent == parent);
        parent = slot;
    }
    CHECK(ranked.size() == table.size());
}

TEST_CASE("books that do not add up are found") {
    kv::page_books<kv::heap::state, kv::xxh3::state, kv::radix::state, kv::lru::state, kv::silent::state> books(
        shape, 4, 64, 0, false, {}, kv::heap{}, kv::xxh3{}, kv::radix{}, kv::lru{}, kv::silent{});
    const auto page = books.allocate(0);
    REQUIRE(page);
    std::vector<std::uint32_t> held(4, 0);
    CHECK(books.check(held).error().message == "the page counts 1 holders and has 0");
    held[kv::index_of(*page)] = 1;
    CHECK(books.check(held));
    CHECK(books.publish({}, counted(0, 16), *page) == *page);
    books.drop(*page);
    held[kv::index_of(*page)] = 0;
    CHECK(books.check(held));
    CHECK(books.idle() == 1);
    CHECK(books.available() == 4);
}
