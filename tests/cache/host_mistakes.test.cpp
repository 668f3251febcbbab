// SPDX-License-Identifier: MIT
// The mistakes of hosts: each has a defined answer, and the cache is sound afterwards. Built with contract checks, as a
// release without them (test_release_contracts), and under sanitizers.
#include <kvcache/cache.hpp>
#include <kvcache/cache/block_tables.hpp>
#include <kvcache/locking/mutex.hpp>
#include <kvcache/storage/external.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cache/matching.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache::literals;

namespace {

constexpr kv::page_shape shape{.layers = 2, .kv_heads = 2, .head_dim = 4, .tokens = 16};
const std::vector<float> row(8);

std::vector<kv::token_id> prompt(std::size_t count) {
    std::vector<kv::token_id> made;
    for (std::size_t i = 0; i < count; ++i)
        made.push_back(kv::token_id{static_cast<std::int32_t>(i)});
    return made;
}

template <class Lease>
void write(const Lease& lease, std::size_t rows) {
    for (std::uint32_t layer = 0; layer < shape.layers; ++layer)
        for (std::size_t i = 0; i < rows; ++i)
            lease.write(kv::layer_id{layer}, i, row, row);
}

template <class Cache>
void store(Cache& cache, typename Cache::sequence& sequence, std::size_t rows) {
    auto lease = cache.reserve(sequence, rows);
    REQUIRE(lease);
    write(*lease, rows);
    lease->commit(prompt(rows));
}

auto small() {
    return kv::make_cache({shape, {.pages = 8}});
}

template <class Act>
std::string rule_broken_by(Act&& act) {
    try {
        act();
    } catch (const kv::contract_violation& violation) {
        return violation.what();
    }
    return "none";
}

} // namespace

TEST_CASE("host mistake: a page of 10 tokens, or rows without numbers") {
    for (const kv::page_shape bad : {kv::page_shape{2, 2, 4, 10}, kv::page_shape{2, 2, 0, 16}}) {
        CHECK_THROWS_AS(kv::make_cache({bad, {.pages = 8}}), kv::contract_violation);
        const auto opened = kv::open_cache({bad, {.pages = 8}});
        REQUIRE_FALSE(opened);
        CHECK(opened.error().code == kv::error_code::out_of_range);
        CHECK(opened.error().field == "shape");
    }
}

TEST_CASE("host mistake: a budget that is too large, or below one page") {
    const auto opened =
        kv::open_cache({{.layers = 1, .kv_heads = 1, .head_dim = 1, .tokens = 16}, {.pages = std::size_t{1} << 31}});
    REQUIRE_FALSE(opened);
    CHECK(opened.error().code == kv::error_code::out_of_memory);
    CHECK(opened.error().field == "limit");
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, kv::codec::f32{}.open(shape).page_bytes() - 1}) {
        CHECK_THROWS_AS(kv::make_cache({shape, {.bytes = bytes}}), kv::contract_violation);
        const auto small = kv::open_cache({shape, {.bytes = bytes}});
        REQUIRE_FALSE(small);
        CHECK(small.error().code == kv::error_code::out_of_range);
        CHECK(small.error().field == "limit");
    }
    CHECK(kv::open_cache({shape, {.bytes = kv::codec::f32{}.open(shape).page_bytes()}})->stats().pages == 1);
}

TEST_CASE("host mistake: more tokens committed than rows reserved") {
    auto cache = small();
    auto sequence = cache.open();
    auto lease = cache.reserve(sequence, 20);
    REQUIRE(lease);
    write(*lease, 20);
    CHECK(rule_broken_by([&] { lease->commit(prompt(30)); }) == "no more tokens are committed than rows were reserved");
    CHECK(sequence.size() == 0);
    lease->commit(prompt(20));
    CHECK(sequence.size() == 20);
    CHECK(cache.check());
}

TEST_CASE("host mistake: a lease used after its end") {
    auto cache = small();
    auto sequence = cache.open();
    auto lease = cache.reserve(sequence, 20);
    REQUIRE(lease);
    write(*lease, 20);
    lease->commit(prompt(20));
    CHECK(rule_broken_by([&] { lease->commit(prompt(20)); }) == "a lease is committed once");
    CHECK(rule_broken_by([&] { lease->write(kv::layer_id{0}, 0, row, row); }) == "a written row was reserved");
    CHECK(rule_broken_by([&] { (void)lease->slot_of(0); }) == "a row that has a slot was reserved");
    CHECK(rule_broken_by([&] { (void)lease->pages(); }) == "a lease shows its pages until it ends");
    CHECK(sequence.size() == 20);
    CHECK(cache.check());
}

TEST_CASE("host mistake: a row of another layer, or of another length") {
    auto cache = small();
    auto sequence = cache.open();
    auto lease = cache.reserve(sequence, 1);
    REQUIRE(lease);
    const std::vector<float> shorter(7);
    CHECK_THROWS_AS(lease->write(kv::layer_id{2}, 0, row, row), kv::contract_violation);
    CHECK_THROWS_AS(lease->write(kv::layer_id{0}, 1, row, row), kv::contract_violation);
    CHECK_THROWS_AS(lease->write(kv::layer_id{0}, 0, shorter, row), kv::contract_violation);
    CHECK_THROWS_AS(lease->write(kv::layer_id{0}, 0, row, shorter), kv::contract_violation);
}

TEST_CASE("host mistake: a fork or a truncation past the end, or during a lease") {
    auto cache = small();
    auto sequence = cache.open();
    store(cache, sequence, 20);
    CHECK(rule_broken_by([&] { (void)sequence.fork(21); }) == "a fork lies inside a sequence without a lease");
    CHECK(rule_broken_by([&] { sequence.truncate(21); }) == "a truncation lies inside a sequence without a lease");
    CHECK(rule_broken_by([&] { (void)sequence.erase_range(10, 11); }) ==
          "an erased range lies inside a sequence without a lease");
    const auto lease = cache.reserve(sequence, 1);
    CHECK_THROWS_AS(sequence.fork(1), kv::contract_violation);
    CHECK_THROWS_AS(sequence.truncate(1), kv::contract_violation);
    CHECK(cache.check());
}

TEST_CASE("host mistake: a second lease of one sequence") {
    auto cache = small();
    auto sequence = cache.open();
    auto lease = cache.reserve(sequence, 3);
    CHECK(rule_broken_by([&] { (void)cache.reserve(sequence, 3); }) == "a sequence has one lease at a time");
    write(*lease, 3);
    lease->commit(prompt(3));
    CHECK(sequence.size() == 3);
    CHECK(cache.check());
}

TEST_CASE("host mistake: a sequence or a match of another cache") {
    auto cache = small(), other = small();
    auto sequence = other.open();
    store(other, sequence, 20);
    const std::string rule = "a sequence is used with its own cache";
    CHECK(rule_broken_by([&] { (void)cache.reserve(sequence, 1); }) == rule);
    CHECK(rule_broken_by([&] { (void)sequence.state_in(cache.core()); }) == rule);
    auto found = kvcache_test::match_in(other, prompt(20));
    CHECK(rule_broken_by([&] { (void)kvcache_test::open_at(cache, std::move(found), {.first = 3, .count = 1}); }) ==
          rule);
    CHECK(cache.check());
    CHECK(other.check());
}

TEST_CASE("host mistake: a sequence that was moved from") {
    auto cache = small();
    auto sequence = cache.open();
    store(cache, sequence, 20);
    auto taken = std::move(sequence);
    const std::string rule = "a sequence that was moved from is only destroyed or assigned to";
    CHECK(rule_broken_by([&] { (void)cache.reserve(sequence, 1); }) == rule);
    CHECK(rule_broken_by([&] { (void)sequence.size(); }) == rule);
    CHECK(rule_broken_by([&] { (void)sequence.tokens(); }) == rule);
    CHECK(rule_broken_by([&] { (void)sequence.table(); }) == rule);
    CHECK(rule_broken_by([&] { (void)sequence.fork(0); }) == rule);
    CHECK(rule_broken_by([&] { sequence.truncate(0); }) == rule);
    CHECK(rule_broken_by([&] { sequence.set_cacheable_limit(3); }) == rule);
    sequence = std::move(taken);
    CHECK(sequence.size() == 20);
    CHECK(cache.check());
}

TEST_CASE("host mistake: a cache that is destroyed before its sequences, matches and leases") {
    auto cache = std::make_unique<kv::cache<>>(small());
    auto sequence = cache->open(), leased = cache->open();
    store(*cache, sequence, 20);
    auto found = std::optional(kvcache_test::match_in(*cache, prompt(20)));
    auto lease = cache->reserve(leased, 20);
    REQUIRE(lease);
    cache.reset();
    const std::string rule = "a cache outlives its sequences";
    CHECK(rule_broken_by([&] { (void)sequence.size(); }) == rule);
    CHECK(rule_broken_by([&] { (void)sequence.fork(3); }) == rule);
    CHECK(rule_broken_by([&] { (void)found->tokens(); }) == rule);
    CHECK(rule_broken_by([&] { lease->write(kv::layer_id{0}, 0, row, row); }) == "a written row was reserved");
    CHECK(rule_broken_by([&] { (void)lease->pages(); }) == "a lease shows its pages until it ends");
    CHECK(rule_broken_by([&] { (void)lease->shape(); }) == "a lease shows its cache until it ends");
    CHECK(rule_broken_by([&] { (void)lease->codec(); }) == "a lease shows its cache until it ends");
    lease->commit({}); // no effect, as after a rollback
    lease->rollback();

    auto next = small();
    sequence = next.open(); // what is left of it may be assigned to
    store(next, sequence, 5);
    CHECK(next.check());
}

TEST_CASE("host mistake: a sequence that is destroyed before its lease") {
    auto cache = small();
    std::optional<kv::cache<>::sequence> sequence = cache.open();
    auto lease = cache.reserve(*sequence, 20);
    REQUIRE(lease);
    sequence.reset();
    CHECK(cache.stats().in_use == 0);
    auto other = cache.open(); // with the memory of the first
    auto others = cache.reserve(other, 3);
    CHECK(lease->rows() == 0);
    CHECK_THROWS_AS(lease->write(kv::layer_id{0}, 0, row, row), kv::contract_violation);
    lease->rollback();
    CHECK(others->rows() == 3);
    CHECK(cache.check());
}

TEST_CASE("host mistake: a lease that outlives its sequence and its cache, in every order") {
    for (const bool cache_first : {false, true})
        for (const bool others_between : {false, true}) {
            std::optional<kv::cache<>> cache(small());
            std::optional<kv::cache<>::sequence> sequence(cache->open());
            auto lease = cache->reserve(*sequence, 20);
            REQUIRE(lease);
            auto moved = std::move(*lease);
            if (cache_first)
                cache.reset();
            sequence.reset();
            if (cache && others_between) { // they use the memory of the first
                auto other = cache->open();
                store(*cache, other, 64);
                const auto one = other.fork(64), two = other.fork(64);
            }
            cache.reset();
            CHECK(moved.rows() == 0);
            CHECK_THROWS_AS(moved.write(kv::layer_id{0}, 0, row, row), kv::contract_violation);
        }
}

TEST_CASE("host mistake: a cache that was moved from") {
    auto cache = small();
    const auto moved = std::move(cache);
    const std::string rule = "a cache that was moved from is only destroyed";
    CHECK(rule_broken_by([&] { (void)kvcache_test::match_in(cache, prompt(20)); }) == rule);
    CHECK(rule_broken_by([&] { (void)cache.acquire(prompt(20)); }) == rule);
    CHECK(rule_broken_by([&] { (void)cache.open(); }) == rule);
}

TEST_CASE("host mistake: a plan of another match or cache") {
    auto cache = small(), other = small();
    const auto found = kvcache_test::match_in(cache, prompt(20));
    CHECK(rule_broken_by([&] { (void)kvcache_test::plan_of(other, found); }) ==
          "a sequence is used with its own cache");
    CHECK(rule_broken_by([&] {
              (void)kvcache_test::open_at(cache, kvcache_test::match_in(cache, prompt(20)), {.first = 50, .count = 3});
          }) == "a plan begins inside its match");
}

namespace {

// A recompute policy that begins after what is cached, or throws.
struct late {
    using role = kv::recompute_role;
    bool throws = false;
    struct state {
        bool throws;
        [[nodiscard]] std::size_t first_computed(std::size_t hit, std::size_t) const {
            if (throws)
                throw std::runtime_error("no plan");
            return hit + 1;
        }
    };
    [[nodiscard]] state open(kv::page_shape) const { return {throws}; }
};

} // namespace

TEST_CASE("host mistake: a recompute policy that begins after the match, or throws") {
    for (const bool throws : {false, true}) {
        auto cache = kv::make_cache({shape, {.pages = 8}}, late{throws}, kv::locking::mutex{});
        auto sequence = cache.open();
        store(cache, sequence, 40);
        if (throws)
            CHECK_THROWS_AS(cache.acquire(prompt(50)), std::runtime_error);
        else
            CHECK(rule_broken_by([&] { (void)cache.acquire(prompt(50)); }) == "a plan begins inside its match");
        CHECK(cache.stats().sequences == 1);
        CHECK(cache.check());
    }
}

TEST_CASE("host mistake: block tables of another page size, and rows that are not there") {
    auto cache = small();
    auto sequence = cache.open();
    store(cache, sequence, 16);
    kv::block_tables tables(8);
    CHECK_THROWS_AS(tables.append(sequence.table()), kv::contract_violation);
    CHECK_THROWS_AS(tables.blocks(0), kv::contract_violation);
}

TEST_CASE("host mistake: a copy that fails, throws or is empty") {
    for (const bool throws : {false, true}) {
        bool works = false;
        auto cache = kv::make_cache({.shape = shape, .limit = {.pages = 8}, .merge_equal_pages = false},
                                    kv::storage::external{.copy = [&](kv::page_id, kv::page_id) {
                                        if (throws && !works)
                                            throw std::runtime_error("the device is lost");
                                        return works;
                                    }});
        auto request = cache.acquire(prompt(20));
        REQUIRE(request);
        request->lease.commit(prompt(20));
        auto fork = request->sequence.fork(20);
        CHECK(cache.reserve(fork, 1).error().field == "copy");
        CHECK(request->sequence.erase_range(0, 4).error().field == "copy");
        CHECK(cache.reserve(fork, 1000).error().field == "pages");
        CHECK(cache.check());
        works = true;
        CHECK(cache.reserve(fork, 1));
        CHECK(cache.check());
    }
    const std::function<bool(kv::page_id, kv::page_id)> empty;
    CHECK_THROWS_AS(kv::make_cache({.shape = shape, .limit = {.pages = 8}, .merge_equal_pages = false},
                                   kv::storage::external{.copy = empty}),
                    kv::contract_violation);
    // Merged pages change entries of block tables, so the host has to know of them.
    const kv::storage::external blocks{.copy = [](kv::page_id, kv::page_id) { return true; }};
    CHECK(rule_broken_by([&] {
              (void)kv::make_cache({shape, {.pages = 8}}, blocks);
          }) == "external memory has on_move, or the cache has merge_equal_pages = false");
    CHECK(kv::open_cache({shape, {.pages = 8}}, blocks).error().field == "merge_equal_pages");
}

TEST_CASE("host mistake: a commit of rows that were not written") {
    auto cache = small();
    auto sequence = cache.open();
    const std::string rule = "rows are written in every layer before they are committed";
    for (std::size_t missing = 0; missing < 70; missing += 23)
        for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
            auto lease = cache.reserve(sequence, 70);
            REQUIRE(lease);
            for (std::uint32_t l = 0; l < shape.layers; ++l)
                for (std::size_t i = 0; i < 70; ++i)
                    if (l != layer || i != missing)
                        lease->write(kv::layer_id{l}, i, row, row);
            CHECK(rule_broken_by([&] { lease->commit(prompt(70)); }) == rule);
            CHECK(rule_broken_by([&] { lease->commit(prompt(missing + 1)); }) == rule);
            CHECK(cache.lookup(prompt(70)).cached_tokens == 0);
        }
    auto lease = cache.reserve(sequence, 70);
    REQUIRE(lease);
    write(*lease, 65);
    lease->commit(prompt(65));
    CHECK(cache.lookup(prompt(70)).cached_tokens == 65);
    CHECK(cache.check());
}

TEST_CASE("host mistake: a result that is read without a value") {
    auto cache = small();
    auto sequence = cache.open();
    auto lease = cache.reserve(sequence, 1000);
    REQUIRE_FALSE(lease);
    CHECK_THROWS_AS(lease->rows(), kv::contract_violation);
    CHECK_THROWS_AS(cache.reserve(sequence, 1).error(), kv::contract_violation);
}

TEST_CASE("a cache that is moved takes its sequences along") {
    const auto owned = std::make_unique<kv::cache<>>(small());
    std::optional<kv::cache<>> held(small());
    auto cache = std::move(*held);
    auto from_data = kv::open_cache({shape, {.pages = 8}});
    REQUIRE(from_data);
    auto taken = *std::move(from_data);
    for (kv::cache<>* one : {owned.get(), &cache, &taken}) {
        auto sequence = one->open();
        store(*one, sequence, 40);
        CHECK(one->lookup(prompt(50)).cached_tokens == 40);
        CHECK(one->check());
        auto leased = one->open();
        auto lease = one->reserve(leased, 10);
        REQUIRE(lease);
        auto moved = std::move(*one);
        CHECK(sequence.size() == 40);
        lease->declare_written();
        lease->commit(prompt(10));
        store(moved, sequence, 5);
        CHECK(moved.check());
        *one = std::move(moved);
    }
    auto moved = std::move(taken); // with pages, and without sequences
    CHECK(moved.lookup(prompt(50)).cached_tokens == 40);
    CHECK(moved.check());
}

TEST_CASE("a violation handler is told the rule first, and may be taken away") {
    static std::string told;
    const auto before = kv::set_violation_handler([](const char* rule) { told = rule; });
    CHECK(before == nullptr);
    CHECK_THROWS_AS(kv::make_cache({shape, {.pages = 0}}), kv::contract_violation);
    CHECK(told == "a cache's limit is at least one page");
    told.clear();
    kv::set_violation_handler(before);
    CHECK_THROWS_AS(kv::make_cache({shape, {.pages = 0}}), kv::contract_violation);
    CHECK(told.empty());
}
