// SPDX-License-Identifier: MIT
#include <kvcache/cache.hpp>
#include <kvcache/index/all.hpp>
#include <kvcache/observer/counting.hpp>
#include <kvcache/observer/events.hpp>

#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cache/matching.hpp"
#include "cache/model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache_test;

namespace {

constexpr kv::page_shape small{1, 2, 16, 16};
constexpr kv::cache_limits pages(std::size_t n) {
    return {n * sizeof(float) * 2 * 2 * 16 * 16};
}

// Stores tokens for a tenant and returns how many of them were cached before.
template <class Tenant>
std::size_t store(const Tenant& tenant, std::span<const kv::token_id> tokens) {
    auto found = match_in(tenant, tokens);
    const std::size_t known = found.tokens();
    past mine;
    for (std::size_t i = 0; i < known; ++i)
        mine.push(tokens[i]);
    auto sequence = open_at(tenant, std::move(found), {known, tokens.size() - known});
    CHECK(rows_hold(tenant, sequence.table(), mine.names));
    REQUIRE(append(tenant, sequence, mine, tokens.subspan(known)));
    return known;
}

} // namespace

TEMPLATE_LIST_TEST_CASE("a tenant finds its own prompts and no other tenant's", "", kv::index_policies) {
    auto cache = kv::make_cache({.shape = small, .limit = pages(20), .tenants = 3}, TestType{});
    const auto a = *view_of(cache, "a", 20), b = *view_of(cache, "b", 20);
    const auto prompt = counted(0, 40);
    CHECK(store(a, prompt) == 0);
    CHECK(store(a, prompt) == 40);
    CHECK(b.lookup(prompt).cached_tokens == 0);
    CHECK(b.lookup(prompt).explain() == "0 of 40 tokens known; nothing is stored after them");
    CHECK(store(b, prompt) == 0);
    CHECK(b.lookup(counted(0, 50)).cached_tokens == 40);
    CHECK(cache.stats().evictable == 6);
    CHECK(cache.check());

    // Tokens that equal a tenant's root match nothing.
    const std::vector<kv::token_id> number(16, kv::token_id{1});
    CHECK(a.lookup(number).cached_tokens == 0);
    auto disguised = number;
    disguised.insert(disguised.end(), prompt.begin(), prompt.end());
    CHECK(b.lookup(disguised).cached_tokens == 0);
}

TEST_CASE("a cache with tenants is used with one of them, and a cache without has none") {
    auto cache = kv::make_cache({.shape = small, .limit = pages(8), .tenants = 2});
    auto alone = kv::make_cache({small, pages(8)});
    const auto prompt = counted(0, 20);
    const auto a = cache.open_tenant();
    CHECK_THROWS_AS(cache.acquire(prompt), kv::contract_violation);
    CHECK_THROWS_AS(cache.open(prompt), kv::contract_violation);
    CHECK_THROWS_AS(cache.lookup(prompt), kv::contract_violation);
    CHECK_THROWS_AS(cache.clear(), kv::contract_violation);
    CHECK_THROWS_AS(alone.acquire(prompt, {.tenant = a}), kv::contract_violation);
    CHECK_THROWS_AS(alone.open_tenant(kv::tenant_salt("a"), 8), kv::contract_violation);
    auto larger = kv::make_cache({.shape = small, .limit = pages(8), .tenants = 9});
    std::optional<kv::tenant> last;
    for (const char* salt : {"a", "b", "c", "d", "e"})
        last = *larger.open_tenant(kv::tenant_salt(salt), 8);
    CHECK_THROWS_AS(cache.acquire(prompt, {.tenant = *last}), kv::contract_violation); // of another cache
    CHECK_THROWS_AS(cache.stats(*last), kv::contract_violation);
    CHECK_THROWS_AS(cache.id(*last), kv::contract_violation);
    CHECK_FALSE(a == larger.open_tenant());
    CHECK(cache.acquire(prompt, {.tenant = a}));
}

TEST_CASE("clear and evict take a tenant's pages, and no other's") {
    auto cache = kv::make_cache({.shape = small, .limit = pages(20), .tenants = 2});
    const auto a = *view_of(cache, "a", 20), b = *view_of(cache, "b", 20);
    const auto prompt = counted(0, 40), other = counted(100, 40);
    for (const auto& view : {a, b}) {
        (void)store(view, prompt);
        (void)store(view, other);
    }
    CHECK(cache.contains(prompt, a.of));
    CHECK(cache.evict(prompt, a.of) == 3);
    CHECK_FALSE(cache.contains(prompt, a.of));
    CHECK(cache.contains(prompt, b.of));
    CHECK(cache.contains(other, a.of));
    {
        const auto held = cache.open(other, a.of); // its pages stay
        CHECK_FALSE(cache.clear(a.of));
        CHECK(cache.evict(other, a.of) == 0);
        CHECK(a.usage().pages == 3);
    }
    CHECK(cache.clear(a.of));
    CHECK(a.usage().pages == 0);
    CHECK(cache.contains(prompt, b.of));
    CHECK(cache.contains(other, b.of));
    CHECK(cache.check());
}

TEST_CASE("a salt names its tenant, and there is room for so many") {
    auto cache = kv::make_cache({.shape = small, .limit = pages(8), .tenants = 2});
    const auto a = *view_of(cache, "a", 8);
    (void)store(a, counted(0, 20));
    const auto b = view_of(cache, "b", 8);
    REQUIRE(b);
    const auto third = view_of(cache, "c", 8);
    REQUIRE_FALSE(third);
    CHECK(third.error().code == kv::error_code::out_of_range);
    CHECK(third.error().field == "tenants");
    const auto again = *view_of(cache, "a", 5);
    CHECK(again.lookup(counted(0, 20)).cached_tokens == 20);
    CHECK(again.usage() == kv::tenant_usage{.pages = 2, .evictable = 2, .quota = 5});
    CHECK_THROWS_AS(kv::tenant_salt(""), kv::contract_violation);
}

TEST_CASE("a new tenant takes the place of one without views, and finds nothing of it") {
    auto cache = kv::make_cache({.shape = small, .limit = pages(20), .tenants = 3});
    const auto prompt = counted(0, 40);
    const auto a = *view_of(cache, "a", 20);
    CHECK(store(a, prompt) == 0);
    (void)store(*view_of(cache, "b", 20), counted(100, 70));
    (void)store(*view_of(cache, "c", 20), prompt);
    const auto d = *view_of(cache, "d", 20); // in place of c, which has fewer pages than b
    CHECK(d.lookup(prompt).cached_tokens == 0);
    CHECK(d.usage() == kv::tenant_usage{.pages = 0, .evictable = 0, .quota = 20});
    CHECK(d.id().tenant == "d");
    CHECK(store(d, prompt) == 0);
    CHECK(view_of(cache, "b", 20)->lookup(counted(100, 70)).cached_tokens == 70);
    const auto c = *view_of(cache, "c", 20); // in place of b
    CHECK(c.lookup(prompt).cached_tokens == 0);
    CHECK(c.lookup(counted(100, 70)).cached_tokens == 0);
    CHECK_FALSE(view_of(cache, "e", 20));
    CHECK(a.lookup(prompt).cached_tokens == 40);
    CHECK(cache.check());
}

TEST_CASE("what belongs to no tenant is shared, and apart from all tenants") {
    auto cache = kv::make_cache({.shape = small, .limit = pages(20), .tenants = 1});
    const auto a = *view_of(cache, "a", 20);
    const auto all = shared_view_of(cache), same = shared_view_of(cache);
    const auto prompt = counted(100, 40);
    CHECK(store(all, prompt) == 0);
    CHECK(same.lookup(prompt).cached_tokens == 40);
    CHECK(a.lookup(prompt).cached_tokens == 0);
    CHECK(store(a, prompt) == 0);
    CHECK(all == same);
    CHECK(!(all == a));
    // A prompt that begins like the root of a tenant finds neither the root nor what is below it.
    for (std::int32_t number = -3; number <= 3; ++number) {
        std::vector<kv::token_id> disguised(16, kv::token_id{number});
        CHECK(all.lookup(disguised).cached_tokens == 0);
        disguised.insert(disguised.end(), prompt.begin(), prompt.end());
        CHECK(all.lookup(disguised).cached_tokens == 0);
        CHECK(a.lookup(disguised).cached_tokens == 0);
        CHECK(store(all, disguised) == 0);
        CHECK(store(all, disguised) == 56);
    }
    CHECK(all.id().tenant.empty());
    CHECK(cache.check());
}

// Many salts, few places, against a model: what each tenant stored since it was opened last, and whether it was
// replaced.
TEST_CASE("tenants come and go at random, and none finds what another has stored") {
    const auto seed = GENERATE(1u, 2u, 3u);
    CAPTURE(seed);
    std::mt19937 draw(seed);
    auto cache = kv::make_cache({.shape = small, .limit = pages(24), .tenants = 4});
    using tenant = tenant_view<decltype(cache)>;
    std::map<std::string, tenant> held;
    for (int step = 0; step < 2000; ++step) {
        const std::string salt(1, static_cast<char>('a' + draw() % 9));
        if (held.contains(salt) && draw() % 2 == 0) {
            held.erase(salt);
            continue;
        }
        const auto opened = view_of(cache, salt, 24);
        REQUIRE(bool(opened) == (held.size() < 4 || held.contains(salt)));
        if (!opened)
            continue;
        CHECK(opened->id().tenant == salt);
        // Each salt stores prompts of its own next to a common one; both begin alike.
        std::vector<kv::token_id> prompt = counted(0, 20);
        const auto own = counted(1000 * (salt[0] - 'a' + 1), 20);
        prompt.insert(prompt.end(), own.begin(), own.end());
        (void)store(*opened, prompt);
        for (char other = 'a'; other < 'j'; ++other)
            if (other != salt[0]) {
                std::vector<kv::token_id> foreign = counted(0, 20);
                const auto its = counted(1000 * (other - 'a' + 1), 20);
                foreign.insert(foreign.end(), its.begin(), its.end());
                CHECK(opened->lookup(foreign).cached_tokens <= 20);
            }
        if (held.size() < 3 || draw() % 4 == 0)
            held.emplace(salt, *opened);
    }
    CHECK(cache.check());
}

TEST_CASE("past its quota a tenant is refused by name, and nothing is lost") {
    auto cache = kv::make_cache({.shape = small, .limit = pages(10), .tenants = 2});
    const auto a = *view_of(cache, "a", 3), b = *view_of(cache, "b", 10);
    auto mine = a.open();
    past known;
    REQUIRE(append(a, mine, known, counted(0, 40)));
    const auto before = cache.stats();
    const auto refused = a.reserve(mine, 16);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == kv::error_code::out_of_memory);
    CHECK(refused.error().field == "quota");
    CHECK(refused.error().message == "16 tokens need 1 pages of 4096 bytes; 0 of 3 can be had");
    CHECK(cache.stats() == before);
    CHECK(rows_hold(a, mine.table(), known.names));

    auto theirs = b.open();
    const auto full = b.reserve(theirs, 16 * 8);
    REQUIRE_FALSE(full);
    CHECK(full.error().field == "pages");
    CHECK(b.reserve(theirs, 16 * 7));
    CHECK(cache.check());
}

TEST_CASE("who has its quota makes room from its own idle pages") {
    auto cache = kv::make_cache({.shape = small, .limit = pages(10), .tenants = 2});
    const auto a = *view_of(cache, "a", 3), b = *view_of(cache, "b", 10);
    (void)store(b, counted(500, 48));
    for (int round = 0; round < 5; ++round)
        (void)store(a, counted(round * 100, 48));
    CHECK(a.usage() == kv::tenant_usage{.pages = 3, .evictable = 3, .quota = 3});
    CHECK(a.lookup(counted(400, 48)).cached_tokens == 48);
    CHECK(b.lookup(counted(500, 48)).cached_tokens == 48);
    CHECK(cache.stats().free == 4);
    CHECK(cache.check());
}

TEST_CASE("a quota that shrinks takes effect as pages are allocated") {
    auto cache = kv::make_cache({.shape = small, .limit = pages(10), .tenants = 1});
    auto a = *view_of(cache, "a", 8);
    (void)store(a, counted(0, 16 * 8));
    a = *view_of(cache, "a", 2);
    CHECK(a.usage().pages == 8);
    auto sequence = a.open();
    CHECK_FALSE(a.reserve(sequence, 33));
    CHECK(a.reserve(sequence, 32));
    CHECK(cache.check());
}

TEMPLATE_LIST_TEST_CASE("each tenant's view agrees with a naive model while others use the cache", "",
                        kv::index_policies) {
    auto cache = kv::make_cache({.shape = small, .limit = pages(24), .tenants = 2}, TestType{});
    auto a = *view_of(cache, "a", 24), b = *view_of(cache, "b", 5);
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
        (void)store(a, counted(static_cast<std::int32_t>(seed), 30));
        auto held = b.open();
        past known;
        REQUIRE(append(b, held, known, counted(0, 70)));
        for (const auto& [length, salt] : {std::pair{60, 0}, {33, 1}}) {
            const auto tokens = counted(salt, static_cast<std::size_t>(length));
            auto one = a.open(), fork = held.fork(40);
            past mine;
            REQUIRE(append(a, one, mine, tokens));
            CHECK(rows_hold(a, one.table(), mine.names));
            CHECK(rows_hold(b, held.table(), known.names));
            fork.truncate(17);
            CHECK(cache.check());
        }
    }
    CHECK(b.usage().evictable == b.usage().pages);
    CHECK(cache.stats().in_use == 0);
}

TEST_CASE("routers see other names for the same tokens of another tenant") {
    std::vector<std::string> lines;
    auto cache = kv::make_cache({.shape = small, .limit = pages(8), .tenants = 2},
                                kv::observer::events{.write = [&](std::string_view line) { lines.emplace_back(line); },
                                                     .seconds = [] { return 1.0; },
                                                     .routers_only = true});
    (void)store(*view_of(cache, "a", 8), counted(0, 16));
    (void)store(*view_of(cache, "b", 8), counted(0, 16));
    REQUIRE(lines.size() == 2);
    CHECK(lines[0] != lines[1]);
    for (const auto& line : lines)
        CHECK(line.find(R"("parent_block_hash":null)") != std::string::npos);
}

TEST_CASE("with fair tenants a flood displaces its own pages, and none of a tenant with fewer") {
    for (const bool fair : {false, true}) {
        auto cache = kv::make_cache({.shape = small, .limit = pages(20), .tenants = 3, .fair_tenants = fair});
        const auto quiet = *view_of(cache, "quiet", 20), loud = *view_of(cache, "loud", 20);
        const auto prompt = counted(0, 96); // six pages
        CHECK(store(quiet, prompt) == 0);
        for (int i = 1; i <= 20; ++i)
            CHECK(store(loud, counted(1000 * i, 64)) == 0);
        CHECK(quiet.lookup(prompt).cached_tokens == (fair ? 96 : 0));
        CHECK(loud.usage().pages == (fair ? 14 : 20));
        CHECK(loud.lookup(counted(20000, 64)).cached_tokens == 64);
        CHECK(cache.check());
    }
}

TEST_CASE("with fair tenants pages in use by one displace none of a tenant with fewer, until that is long unseen") {
    auto cache = kv::make_cache({.shape = small, .limit = pages(20), .tenants = 3, .fair_tenants = true});
    const auto quiet = *view_of(cache, "quiet", 20), loud = *view_of(cache, "loud", 20);
    const auto prompt = counted(0, 96); // six pages
    CHECK(store(quiet, prompt) == 0);
    {
        auto held = loud.open();
        past mine;
        REQUIRE(append(loud, held, mine, counted(1000, 14 * 16)));
        CHECK_FALSE(append(loud, held, mine, counted(5000, 1))); // the other six are quiet's, which has fewer
        CHECK(cache.reserve(held, 1).error().field == "share");
        auto second = quiet.open();
        past own;
        CHECK_FALSE(append(quiet, second, own, counted(3000, 112))); // seven pages: one more than its own six
        CHECK(append(quiet, second, own, counted(3000, 96)));        // its first prompt is evicted for them
        CHECK(cache.check());
    }
    CHECK(store(quiet, prompt) == 0);
    CHECK(quiet.lookup(prompt).cached_tokens == 96);
    for (int i = 0; i < 200; ++i) // sixteen times the cache is taken, and quiet is not seen
        (void)store(loud, counted(100000 + 1000 * i, 32));
    auto held = loud.open();
    past mine;
    CHECK(append(loud, held, mine, counted(7000, 20 * 16)));
    CHECK(cache.check());
}

TEST_CASE("with fair tenants the one with the most pages makes room for the others") {
    auto cache = kv::make_cache({.shape = small, .limit = pages(20), .tenants = 3, .fair_tenants = true});
    const auto first = *view_of(cache, "first", 20);
    for (int i = 1; i <= 10; ++i)
        (void)store(first, counted(1000 * i, 32));
    CHECK(first.usage().pages == 20);
    const auto second = *view_of(cache, "second", 20), third = *view_of(cache, "third", 20);
    for (int i = 1; i <= 10; ++i) {
        (void)store(second, counted(100000 + 1000 * i, 32));
        (void)store(third, counted(200000 + 1000 * i, 32));
    }
    for (const auto& each : {first, second, third}) {
        CHECK(each.usage().pages >= 6);
        CHECK(each.usage().pages <= 8);
    }
    CHECK(cache.check());
}

TEST_CASE("the whole cache is cleared at once, but for what a sequence uses; statistics start anew") {
    auto cache = kv::make_cache({.shape = small, .limit = pages(20), .tenants = 3}, kv::observer::counting{});
    const auto a = *view_of(cache, "a", 20), b = *view_of(cache, "b", 20);
    (void)store(a, counted(0, 40));
    (void)store(b, counted(0, 40));
    {
        const auto held = match_in(b, counted(0, 40));
        CHECK_FALSE(cache.clear_all());
        CHECK(cache.stats().evictable == 0);
        CHECK(cache.stats().in_use == 3);
    }
    CHECK(cache.clear_all());
    CHECK(cache.stats().free == 20);
    const auto counts = [&] { return cache.with_observer([](const auto& seen) { return seen.counts(); }); };
    CHECK(counts().pages_evicted == 6);
    cache.reset_statistics();
    CHECK(counts().pages_evicted == 0);
    CHECK(counts().lookups == 0);
    CHECK(cache.check());
}
