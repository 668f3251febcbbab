// SPDX-License-Identifier: MIT
#include <kvcache/cache/block_tables.hpp>
#include <kvcache/cache/compose.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/eviction/all.hpp>
#include <kvcache/index/all.hpp>
#include <kvcache/storage/external.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "cache/host_rows.hpp"
#include "cache/matching.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache_test;

namespace {

constexpr kv::page_shape shape{.layers = 2, .kv_heads = 1, .head_dim = 4, .tokens = host_tensor::page_tokens};

template <class... Policies>
auto cache_of(std::size_t pages, host_tensor& host, bool merge, Policies... policies) {
    return kv::make_cache({.shape = shape, .limit = {.pages = pages}, .merge_equal_pages = merge}, host.blocks(),
                          policies...);
}

template <class Cache>
void append(Cache& cache, typename Cache::sequence& to, std::span<const kv::token_id> tokens) {
    auto lease = cache.reserve(to, tokens.size());
    REQUIRE(lease);
    lease->commit(tokens);
}

} // namespace

TEMPLATE_TEST_CASE("external memory and a naive model agree on every row, and block tables stay", "",
                   kv::eviction::learned_reuse, kv::eviction::lru, kv::eviction::fifo) {
    for (const bool merge : {false, true})
        for (const std::size_t pages : {3u, 8u, 40u})
            for (std::uint64_t seed = 1; seed <= 6; ++seed) {
                INFO("merge " << merge << ", " << pages << " pages, seed " << seed);
                host_tensor host(pages);
                auto cache = cache_of(pages, host, merge, TestType{});
                cache_model<decltype(cache), seeded, host_rows> model(cache, seeded(seed), {.vocabulary = 2},
                                                                      {&host, merge});
                CHECK_NOTHROW(model.run(1500));
                CHECK((pages > 3 || model.refused() > 0));
                CHECK(model.reused() > 0);
            }
}

TEST_CASE("blocks of any number of tokens, from one on, agree with a naive model") {
    for (const std::uint32_t tokens : {1u, 4u, 12u, 16u, 65u})
        for (const bool merge : {false, true})
            for (std::uint64_t seed = 1; seed <= 4; ++seed) {
                INFO("blocks of " << tokens << ", merge " << merge << ", seed " << seed);
                const std::size_t blocks = 640 / tokens;
                host_tensor host(blocks, tokens);
                auto cache = kv::make_cache(
                    {.shape = {.tokens = tokens}, .limit = {.pages = blocks}, .merge_equal_pages = merge},
                    host.blocks());
                cache_model<decltype(cache), seeded, host_rows> model(cache, seeded(seed), {.vocabulary = 2},
                                                                      {&host, merge});
                CHECK_NOTHROW(model.run(1500));
                CHECK(model.reused() > 0);
            }
}

TEMPLATE_TEST_CASE("external memory works with every index", "", kv::index::radix, kv::index::hash_chain) {
    for (const bool merge : {false, true}) {
        host_tensor host(12);
        auto cache = cache_of(12, host, merge, TestType{});
        cache_model<decltype(cache), seeded, host_rows> model(cache, seeded(7), {.vocabulary = 2}, {&host, merge});
        CHECK_NOTHROW(model.run(3000));
    }
}

TEST_CASE("two prompts that are computed at once keep their blocks, and later prompts share the first") {
    host_tensor host(16);
    auto cache = cache_of(16, host, false);
    const auto prompt = counted(0, 40);
    auto one = cache.open(), two = cache.open();
    auto first = cache.reserve(one, 40), second = cache.reserve(two, 40);
    REQUIRE((first && second));
    first->commit(prompt);
    second->commit(prompt);
    CHECK(cache.stats().in_use == 6);
    CHECK(host.moved.empty());
    for (std::size_t i = 0; i < 3; ++i)
        CHECK(one.table()[i].page != two.table()[i].page);
    append(cache, two, counted(100, 30)); // it continues the first one's pages in the index
    CHECK(cache.check());
    {
        const auto fork = two.fork(50);
        CHECK(fork.table()[0].page == two.table()[0].page);
        CHECK(cache.check());
    }

    auto longer = prompt;
    const auto more = counted(100, 30);
    longer.insert(longer.end(), more.begin(), more.end());
    auto found = match_in(cache, longer);
    REQUIRE(found.tokens() == 70);
    auto three = open_at(cache, std::move(found), {.first = 64, .count = 6});
    CHECK(three.table()[0].page == one.table()[0].page);
    CHECK(three.table()[1].page == one.table()[1].page);
    CHECK(three.table()[2].page == two.table()[2].page);
    { const auto gone = std::move(one); }
    CHECK(cache.check());
    { const auto gone = std::move(two); }
    CHECK(cache.check());
    CHECK(cache.lookup(longer).cached_tokens == 70);
}

TEST_CASE("merged blocks are reported, and freed") {
    host_tensor host(16);
    auto cache = cache_of(16, host, true);
    const auto prompt = counted(0, 40);
    auto one = cache.open(), two = cache.open();
    auto first = cache.reserve(one, 40), second = cache.reserve(two, 40);
    REQUIRE((first && second));
    const std::vector<kv::page_entry> before(second->pages().table.begin(), second->pages().table.end());
    first->commit(prompt);
    CHECK(host.moved.empty());
    second->commit(prompt);
    REQUIRE(host.moved.size() == 2); // the third page is not full
    for (std::size_t i = 0; i < 2; ++i)
        CHECK(host.moved[i] == kv::moved_entry{i, before[i].page, one.table()[i].page});
    CHECK(cache.stats().in_use == 4);
    CHECK(cache.check());
}

TEST_CASE("evicted blocks are reported once, and a copy that fails refuses the reservation") {
    host_tensor host(4);
    bool fails = false;
    kv::storage::external blocks = host.blocks();
    blocks.copy = [&](kv::page_id from, kv::page_id to) {
        host.copy(from, to);
        return !fails;
    };
    auto cache = kv::make_cache({shape, {.pages = 4}}, blocks, kv::eviction::lru{});
    {
        auto one = cache.open();
        append(cache, one, counted(0, 50)); // 4 pages
    }
    CHECK(host.evicted.empty());
    auto two = cache.open();
    append(cache, two, counted(1000, 20)); // evicts 2
    CHECK(host.evicted.size() == 2);
    auto fork = two.fork(18);
    fails = true;
    const auto refused = cache.reserve(fork, 1);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == kv::error_code::io);
    CHECK(refused.error().field == "copy");
    CHECK(fork.size() == 18);
    CHECK(cache.check());
    const auto full = cache.reserve(fork, 1000);
    REQUIRE_FALSE(full);
    CHECK(full.error().code == kv::error_code::out_of_memory); // the failed copy is not reported again
    fails = false;
    CHECK(cache.reserve(fork, 1));
    CHECK(cache.check());
}

TEST_CASE("a page's size and layout are the host's, and the limit may be in bytes or pages") {
    const auto copy = [](kv::page_id, kv::page_id) { return true; };
    const kv::codec::external large{.page_bytes = 1000, .layout = "(2, 16, 1, 4)"};
    auto cache = kv::make_cache({.shape = shape, .limit = {.bytes = 5500}, .merge_equal_pages = false},
                                kv::storage::external{.copy = copy}, large);
    CHECK(cache.stats().pages == 5);
    CHECK(cache.stats().page_bytes == 1000);
    CHECK(cache.id().layout == "(2, 16, 1, 4)");
    CHECK(kv::make_cache({.shape = shape, .limit = {.bytes = 5500, .pages = 3}, .merge_equal_pages = false},
                         kv::storage::external{.copy = copy}, large)
              .stats()
              .pages == 3);
    CHECK(kv::make_cache({.shape = shape, .limit = {.pages = 3}, .merge_equal_pages = false},
                         kv::storage::external{.copy = copy})
              .stats()
              .page_bytes == 2 * 2 * 1 * 4 * 16 * 2);
    CHECK_THROWS_AS(kv::make_cache({shape, {.pages = 3}}, kv::storage::external{}), kv::contract_violation);
}

TEST_CASE("block tables are compressed rows") {
    host_tensor host(16);
    auto cache = cache_of(16, host, false);
    auto a = cache.open(), b = cache.open(), empty = cache.open();
    append(cache, a, counted(0, 33));
    append(cache, b, counted(0, 32)); // its own pages
    auto lease = cache.reserve(b, 1);
    REQUIRE(lease);
    kv::block_tables tables(host_tensor::page_tokens);
    for (int round = 0; round < 2; ++round) {
        tables.clear();
        tables.append(a.table());
        tables.append(empty.table());
        tables.append(lease->pages().table);
        CHECK(kvcache::ranges::equal(tables.indptr(), std::vector{0, 3, 3, 6}));
        CHECK(kvcache::ranges::equal(tables.last_page_len(), std::vector{1, 0, 1}));
        REQUIRE(tables.indices().size() == 6);
        for (std::size_t i = 0; i < 3; ++i) {
            CHECK(tables.blocks(0)[i] == static_cast<std::int32_t>(kv::index_of(a.table()[i].page)));
            CHECK(tables.blocks(2)[i] == static_cast<std::int32_t>(kv::index_of(lease->pages().table[i].page)));
        }
        CHECK(tables.blocks(1).empty());
    }
    for (const auto& wrong : {std::vector<kv::page_entry>{{.count = 5}, {.count = 16}},
                              {{.count = 16}, {.count = 5}, {.count = 16}},
                              {{.count = 16}, {.count = 17}},
                              {{.count = 16}, {.first = 1, .count = 5}},
                              {{.count = 16}, {.base = 1, .count = 5}}})
        CHECK_THROWS_AS(tables.append(wrong), kv::contract_violation);
    CHECK(tables.indices().size() == 6);
}
