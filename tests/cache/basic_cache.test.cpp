// SPDX-License-Identifier: MIT
#include <kvcache/cache/basic_cache.hpp>
#include <kvcache/core/platform/memory.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/observer/counting.hpp>
#include <kvcache/testing/fault_injecting.hpp>

#include <new>
#include <stdexcept>

#include "cache/matching.hpp"
#include "cache/model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache_test;

namespace {

constexpr kv::page_shape small{.layers = 2, .kv_heads = 2, .head_dim = 4, .tokens = 16};

[[nodiscard]] kv::cache_limits pages(std::size_t n, kv::page_shape shape = small) {
    return {n * kv::codec::f32{}.open(shape).page_bytes()};
}

/// The radix index; every n-th insertion runs out of memory.
struct forgetful_index {
    using role = kv::index_role;
    std::size_t every = 2;
    struct state {
        kv::index::radix::state inner;
        std::size_t every;
        std::size_t calls = 0;
        [[nodiscard]] kv::index_match match(std::span<const kv::token_id> tokens) const { return inner.match(tokens); }
        kv::insertion insert(std::optional<kv::page_id> parent, std::span<const kv::token_id> run, kv::page_id page) {
            if (++calls % every == 0)
                throw std::bad_alloc();
            return inner.insert(parent, run, page);
        }
        void erase(kv::page_id page) { inner.erase(page); }
        [[nodiscard]] bool contains(kv::page_id page) const { return inner.contains(page); }
        [[nodiscard]] bool leaf(kv::page_id page) const { return inner.leaf(page); }
        [[nodiscard]] std::optional<kv::page_id> parent(kv::page_id page) const { return inner.parent(page); }
        [[nodiscard]] std::span<const kv::token_id> run(kv::page_id page) const { return inner.run(page); }
    };
    [[nodiscard]] state open(kv::page_shape shape, std::size_t pages) const {
        return {kv::index::radix{}.open(shape, pages), every};
    }
};
static_assert(kv::index_policy<forgetful_index>);

/// LRU; every n-th admission runs out of memory.
struct forgetful_eviction {
    using role = kv::eviction_role;
    std::size_t every = 2;
    struct state {
        kv::eviction::lru::state inner;
        std::size_t every;
        std::size_t calls = 0;
        void admit(kv::slot_id slot, const kv::eviction_entry& newcomer) {
            if (++calls % every == 0)
                throw std::bad_alloc();
            inner.admit(slot, newcomer);
        }
        void touch(kv::slot_id slot) { inner.touch(slot); }
        void erase(kv::slot_id slot) { inner.erase(slot); }
        [[nodiscard]] std::optional<kv::slot_id> victim(const auto& is_evictable) { return inner.victim(is_evictable); }
    };
    [[nodiscard]] state open(kv::eviction_capacity capacity) const {
        return {kv::eviction::lru{}.open(capacity), every};
    }
};
static_assert(kv::eviction_policy<forgetful_eviction>);

/// An observer that always throws.
struct hysterical {
    using role = kv::observer_role;
    struct state {
        void on(const kv::event&) { throw std::runtime_error("an observer's fault"); }
    };
    [[nodiscard]] state open() const { return {}; }
};

/// A heap that holds only a few pages.
class bounded : public kvcache::pmr::memory_resource {
public:
    explicit bounded(std::size_t blocks) : left_(blocks) {}

private:
    void* do_allocate(std::size_t bytes, std::size_t alignment) override {
        if (left_ == 0)
            throw std::bad_alloc();
        --left_;
        return kvcache::pmr::new_delete_resource()->allocate(bytes, alignment);
    }
    void do_deallocate(void* at, std::size_t bytes, std::size_t alignment) override {
        ++left_;
        kvcache::pmr::new_delete_resource()->deallocate(at, bytes, alignment);
    }
    [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

    std::size_t left_;
};

template <class... Policies>
void run_model(std::uint64_t seed, kv::page_shape shape, std::size_t page_count, std::size_t rounds, bool storage_fails,
               bool forgets, Policies... policies) {
    INFO("seed " << seed << ", pages of " << shape.tokens << ", budget of " << page_count);
    auto cache = kv::make_cache({shape, pages(page_count, shape)}, policies...);
    using model = cache_model<decltype(cache), seeded>;
    model played(cache, seeded(seed),
                 {.vocabulary = 1 + seed % 3,
                  .longest = 20 + seed % 4 * shape.tokens,
                  .live = 2 + seed % 7,
                  .storage_fails = storage_fails,
                  .forgets = forgets});
    REQUIRE_NOTHROW(played.run(rounds));
}

} // namespace

TEST_CASE("a cache and a naive model agree on every row under random use") {
    for (const std::uint32_t tokens : {16u, 32u, 64u})
        for (const std::size_t budget : {1u, 2u, 5u, 12u, 30u})
            for (std::uint64_t seed = 0; seed < 6; ++seed)
                run_model(seed, {2, 2, 4, tokens}, budget, 300, false, false);
}

TEST_CASE("a storage that fails at every n-th call breaks nothing") {
    for (const std::uint64_t every : {1u, 2u, 3u, 7u})
        for (const std::size_t budget : {1u, 3u, 8u, 20u})
            for (std::uint64_t seed = 0; seed < 4; ++seed)
                run_model(seed, small, budget, 300, true, false,
                          kv::testing::fault_injecting_storage<>{.every = every});
}

TEST_CASE("an index or an eviction policy without memory costs knowledge, never a row or a page") {
    for (const std::size_t every : {1u, 2u, 3u, 7u})
        for (const std::size_t budget : {1u, 3u, 8u, 20u})
            for (std::uint64_t seed = 0; seed < 4; ++seed) {
                run_model(seed, small, budget, 300, false, true, forgetful_index{every});
                run_model(seed, small, budget, 300, false, true, forgetful_eviction{every});
                run_model(seed, small, budget, 300, true, true, forgetful_index{every}, forgetful_eviction{every + 1},
                          kv::testing::fault_injecting_storage<>{.every = 5});
            }
}

TEST_CASE("an observer that throws changes nothing") {
    for (std::uint64_t seed = 0; seed < 4; ++seed)
        run_model(seed, small, 6, 300, false, false, hysterical{});
}

TEST_CASE("100,000 rounds of open, append, fork, truncate and release leave every page free") {
    run_model(20260, small, 24, 100'000, false, false);
}

TEST_CASE("10 sequences that share 10 pages and own one each hold 20 pages") {
    auto cache = kv::make_cache({small, pages(64)});
    const auto shared = counted(0, 160);
    std::vector<decltype(cache)::sequence> sequences;
    for (std::int32_t i = 0; i < 10; ++i) {
        auto found = match_in(cache, shared);
        past known;
        auto sequence = open_at(cache, std::move(found), {i == 0 ? 0u : 160u, 0});
        if (i == 0)
            REQUIRE(append(cache, sequence, known, shared));
        REQUIRE(append(cache, sequence, known, counted(1000 + i, 16)));
        sequences.push_back(std::move(sequence));
    }
    CHECK(cache.stats().in_use == 20);
    CHECK(cache.check());
    sequences.clear();
    CHECK(cache.stats().in_use == 0);
    CHECK(cache.stats().evictable == 20);
    CHECK(cache.check());
}

TEST_CASE("twin pages become one when they are committed") {
    auto cache = kv::make_cache({small, pages(8)});
    auto a = cache.open(), b = cache.open();
    past one, two;
    auto first = cache.reserve(a, 40), second = cache.reserve(b, 40);
    REQUIRE((first && second));
    const auto tokens = counted(0, 40);
    for (std::size_t row = 0; row < 40; ++row) {
        one.push(tokens[row]);
        write_row(*first, small, row, one.names.back());
        write_row(*second, small, row, one.names.back());
    }
    CHECK(cache.stats().in_use == 6);
    first->commit(tokens);
    second->commit(tokens);
    CHECK(cache.stats().in_use == 4); // two shared full pages, and a partial one each
    CHECK(a.table()[0].page == b.table()[0].page);
    CHECK(a.table()[1].page == b.table()[1].page);
    CHECK(a.table()[2].page != b.table()[2].page);
    CHECK(rows_hold(cache, b.table(), one.names));
    CHECK(cache.check());
}

TEST_CASE("a partial page that two sequences reference is copied by the one that writes first") {
    for (const bool original_first : {true, false}) {
        auto cache = kv::make_cache({small, pages(8)}, kv::observer::counting{});
        auto a = cache.open();
        past one;
        REQUIRE(append(cache, a, one, counted(0, 10)));
        auto b = a.fork(7);
        past two = one.first(7);
        CHECK(cache.stats().in_use == 1);
        const auto page = a.table()[0].page;
        REQUIRE((original_first ? append(cache, a, one, counted(50, 3)) : append(cache, b, two, counted(90, 3))));
        CHECK((original_first ? a : b).table()[0].page != page);
        CHECK(cache.stats().in_use == 2);
        REQUIRE((original_first ? append(cache, b, two, counted(90, 3)) : append(cache, a, one, counted(50, 3))));
        CHECK(rows_hold(cache, a.table(), one.names));
        CHECK(rows_hold(cache, b.table(), two.names));
        CHECK(cache.check());
    }
}

TEST_CASE("a sequence truncated into a page that others know copies it before it writes") {
    auto cache = kv::make_cache({small, pages(8)}, kv::observer::counting{});
    auto a = cache.open();
    past one;
    REQUIRE(append(cache, a, one, counted(0, 32)));
    a.truncate(20);
    one.resize(20);
    REQUIRE(append(cache, a, one, counted(70, 5)));
    CHECK(cache.core().pages().observer().counts().pages_copied == 1);
    CHECK(rows_hold(cache, a.table(), one.names));
    CHECK(cache.lookup(counted(0, 32)).cached_tokens == 32); // the full page is still cached
    CHECK(cache.lookup(one.tokens).cached_tokens == 25);
    CHECK(cache.check());
}

TEST_CASE("a refusal names what is needed and what is there, and changes nothing") {
    auto cache = kv::make_cache({small, pages(4)}, kv::observer::counting{});
    auto a = cache.open();
    past one;
    REQUIRE(append(cache, a, one, counted(0, 20)));
    const auto before = cache.stats();
    const auto refused = cache.reserve(a, 100);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == kv::error_code::out_of_memory);
    CHECK_THAT(refused.error().message, Catch::Matchers::StartsWith("100 tokens need 6 pages of "));
    CHECK_THAT(refused.error().message, Catch::Matchers::EndsWith("2 of 4 can be had"));
    CHECK(cache.stats() == before);
    CHECK(cache.core().pages().observer().counts().refusals == 1);
    CHECK_FALSE(cache.reserve(a, static_cast<std::size_t>(-1)));
    CHECK(cache.stats() == before);
    CHECK(cache.check());
}

TEST_CASE("a cache works in less memory than its budget") {
    bounded resource(3);
    auto cache = kv::make_cache({small, pages(100)}, kv::storage::heap{.resource = &resource});
    for (std::int32_t i = 0; i < 20; ++i) {
        auto sequence = cache.open();
        past known;
        REQUIRE(append(cache, sequence, known, counted(100 * i, 48))); // evicts the pages of the previous one
        CHECK(rows_hold(cache, sequence.table(), known.names));
        CHECK_FALSE(cache.reserve(sequence, 1));
        CHECK(cache.check());
    }
}

TEST_CASE("a shape without extent is a caller's mistake") {
    CHECK_THROWS_AS(kv::make_cache({{0, 2, 4, 16}, {1 << 20}}), kv::contract_violation);
    CHECK_THROWS_AS(kv::make_cache({{2, 2, 4, 0}, {1 << 20}}), kv::contract_violation);
    CHECK_THROWS_AS(kv::make_cache({{2, 2, 4, 24}, {1 << 20}}), kv::contract_violation);
}

TEST_CASE("a cache describes itself") {
    auto cache = kv::make_cache({small, pages(3), {.weights = {1, 2}}});
    auto a = cache.open();
    past one;
    REQUIRE(append(cache, a, one, counted(0, 20)));
    CHECK(kv::describe(cache) == "kvcache: 2 layers, 2 KV heads of 4, pages of 16 tokens and 5120 bytes (float32); "
                                 "3 pages: 2 in use by 1 sequences, 0 evictable, 1 free; identity " +
                                     kv::to_string(kv::digest_of(cache.id())));
    CHECK(cache.id().codec == "float32");
    CHECK(cache.id().page_tokens == 16);
    CHECK(cache.id().weights == kv::digest{1, 2});
}

TEST_CASE("an observer receives every event") {
    auto cache = kv::make_cache({small, pages(4)}, kv::observer::counting{});
    {
        auto found = match_in(cache, counted(0, 40));
        auto a = open_at(cache, std::move(found), {0, 40});
        past one;
        REQUIRE(append(cache, a, one, counted(0, 40)));
        CHECK(match_in(cache, counted(0, 50)).tokens() == 40);
    }
    auto b = cache.open();
    past two;
    REQUIRE(append(cache, b, two, counted(100, 33)));
    const kv::observer::event_counts& counts = cache.core().pages().observer().counts();
    CHECK(counts.lookups == 2);
    CHECK(counts.tokens_looked_up == 90);
    CHECK(counts.tokens_found == 40);
    CHECK(counts.tokens_stored == 73);
    CHECK(counts.pages_evicted == 2);
    CHECK(counts.refusals == 0);
}

TEST_CASE("what is least recently used leaves first, leaves before parents") {
    auto cache = kv::make_cache({small, pages(4)});
    for (const std::int32_t first : {0, 100}) {
        auto a = cache.open();
        past one;
        REQUIRE(append(cache, a, one, counted(first, 32)));
    }
    (void)match_in(cache, counted(0, 32)); // used again
    auto b = cache.open();
    past two;
    REQUIRE(append(cache, b, two, counted(200, 16)));
    CHECK(cache.lookup(counted(0, 32)).cached_tokens == 32);
    CHECK(cache.lookup(counted(100, 32)).cached_tokens == 16);
    CHECK(cache.check());
}

TEST_CASE("evict frees the pages of a prompt that nothing else needs, and clear all that nothing uses") {
    auto cache = kv::make_cache({small, pages(20)}, kv::observer::counting{});
    const auto keep = [&](std::span<const kv::token_id> tokens) {
        auto request = cache.acquire(tokens);
        REQUIRE(request);
        request->lease.declare_written();
        request->lease.commit(tokens.subspan(request->lease.first()));
    };
    auto longer = counted(0, 64), branch = counted(0, 32);
    const auto more = counted(500, 32);
    branch.insert(branch.end(), more.begin(), more.end());
    keep(longer);
    keep(branch); // they share two pages
    CHECK(cache.contains(longer));
    CHECK_FALSE(cache.contains(counted(0, 65)));
    CHECK(cache.evict(longer) == 2);
    CHECK(cache.lookup(longer).cached_tokens == 32);
    CHECK(cache.contains(branch));
    CHECK(cache.evict(counted(900, 10)) == 0); // unknown
    const auto pages_of_branch = [&] {
        std::vector<kv::page_id> made;
        const auto held = cache.open(branch);
        for (const auto& entry : held.table())
            made.push_back(entry.page);
        return made;
    }();
    {
        const auto held = cache.open(branch);
        CHECK(cache.evict(pages_of_branch) == 0);
        CHECK_FALSE(cache.clear());
    }
    CHECK(cache.evict(std::span(pages_of_branch).first(1)) == 0); // others continue it
    CHECK(cache.evict(pages_of_branch) == 4);
    CHECK(cache.stats().free == 20);
    CHECK(cache.evict(pages_of_branch) == 0);
    CHECK_THROWS_AS(cache.evict(std::vector{kv::page_id{20}}), kv::contract_violation);
    keep(longer);
    keep(counted(700, 40));
    CHECK(cache.clear());
    CHECK(cache.stats().free == 20);
    CHECK(cache.lookup(longer).cached_tokens == 0);
    CHECK(cache.check());
}
