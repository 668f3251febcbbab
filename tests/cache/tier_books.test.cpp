// SPDX-License-Identifier: MIT
// A cache with a tier, whose rows are a function of all tokens before them: whatever the tier does, no row is wrong.
#include <kvcache/cache/compose.hpp>
#include <kvcache/cache/tenant_cache.hpp>
#include <kvcache/core/mixed_bits.hpp>
#include <kvcache/storage/failing.hpp>
#include <kvcache/tier/all.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using tokens = std::vector<kv::token_id>;

constexpr kv::page_shape shape{.layers = 2, .kv_heads = 2, .head_dim = 4, .tokens = 16};

[[nodiscard]] kv::budget pages(std::size_t n) {
    return {n * kv::plain{}.open(shape).page_bytes()};
}

tokens some(std::size_t count, unsigned seed) {
    std::mt19937 dice(seed);
    tokens made;
    for (; count > 0; --count)
        made.push_back(kv::token_id{static_cast<std::int32_t>(dice() % 50)});
    return made;
}

std::uint64_t past_of(std::uint64_t past, kv::token_id token) {
    return kv::mixed_bits(past * 31 + static_cast<std::uint64_t>(kv::index_of(token)) + 1);
}

float number(std::uint64_t past, std::uint32_t layer, std::uint32_t head, std::size_t d) {
    return static_cast<float>(kv::mixed_bits(past + layer * 1000 + head * 100 + d) % 4096);
}

// Whether every row of a sequence is the one its past has.
template <class Cache>
bool right(const Cache& cache, const typename Cache::sequence& of) {
    std::uint64_t past = 7;
    for (std::size_t i = 0; i < of.size(); ++i) {
        past = past_of(past, of.tokens()[i]);
        const kv::page_entry& entry = of.table()[i / shape.tokens];
        const auto row = static_cast<std::uint32_t>(i % shape.tokens);
        for (std::uint32_t layer = 0; layer < shape.layers; ++layer)
            for (std::uint32_t head = 0; head < shape.kv_heads; ++head) {
                const kv::page_tile tile{kv::layer_id{layer}, kv::head_id{head}, row / kv::tile_tokens};
                const float* keys = cache.codec().keys(cache.bytes(entry.page), tile, {});
                const float* values = cache.codec().values(cache.bytes(entry.page), tile, {});
                for (std::size_t d = 0; d < shape.head_dim; ++d)
                    if (keys[d * kv::tile_tokens + row % kv::tile_tokens] != number(past, layer, head, d) ||
                        values[row % kv::tile_tokens * kv::value_width(shape.head_dim) + d] !=
                            number(past, layer, head, d + 50))
                        return false;
            }
    }
    return true;
}

// Computes the tokens behind a sequence.
template <class Cache, class Sequence>
bool extend(Cache& cache, Sequence& sequence, std::span<const kv::token_id> more) {
    auto lease = cache.reserve(sequence, more.size());
    if (!lease)
        return false;
    std::uint64_t past = 7;
    for (const kv::token_id token : sequence.tokens())
        past = past_of(past, token);
    for (std::size_t i = 0; i < more.size(); ++i) {
        past = past_of(past, more[i]);
        for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
            std::vector<float> keys, values;
            for (std::uint32_t head = 0; head < shape.kv_heads; ++head)
                for (std::size_t d = 0; d < shape.head_dim; ++d) {
                    keys.push_back(number(past, layer, head, d));
                    values.push_back(number(past, layer, head, d + 50));
                }
            lease->write(kv::layer_id{layer}, i, keys, values);
        }
    }
    lease->commit(more);
    return true;
}

struct answer {
    std::size_t known = 0, loaded = 0;
    std::string words = {};
};

template <class Cache>
answer feed(Cache& cache, const tokens& prompt) {
    auto found = cache.match(prompt);
    const auto plan = cache.plan(found);
    answer made{found.tokens(), found.loaded(), found.explain()};
    auto sequence = cache.open(std::move(found), plan);
    if constexpr (requires { cache.check(); })
        REQUIRE(right(cache, sequence));
    REQUIRE(extend(cache, sequence, std::span(prompt).subspan(sequence.size())));
    return made;
}

// One store for several caches, as a disk is.
struct shared {
    using role = kv::tier_role;
    kv::memory<>::state* store = nullptr;
    struct state {
        kv::memory<>::state* store;
        template <class Use>
        kv::result<bool> read(const kv::digest256& name, Use&& use) {
            return store->read(name, use);
        }
        kv::result<void> put(const kv::tier_entry& e, std::span<const std::span<const std::byte>> p) {
            return store->put(e, p);
        }
        bool contains(const kv::digest256& name) { return store->contains(name); }
        kv::result<void> erase(const kv::digest256& name) { return store->erase(name); }
        kv::result<void> flush() { return store->flush(); }
        kv::result<void> status() const { return {}; }
        kv::tier_counts counts() const { return store->counts(); }
    };
    state open() const { return {store}; }
};
static_assert(kv::tier_policy<shared>);

template <class... Policies>
auto made(std::size_t n, Policies... policies) {
    return kv::make_cache(kv::identity{.weights = {1, 2}}, shape, pages(n), std::move(policies)...);
}

} // namespace

TEST_CASE("a cache that begins anew finds in the tier what another has stored") {
    auto store = kv::memory<>{}.open();
    const tokens prompt = some(100, 1);
    {
        auto first = made(20, shared{&store});
        CHECK(feed(first, prompt).known == 0);
        CHECK(first.tier_stats().handed_over == 6);
        CHECK(feed(first, prompt).loaded == 0); // memory knows it
        CHECK(first.tier_stats().handed_over == 6);
    }
    auto second = made(20, shared{&store});
    const answer again = feed(second, prompt);
    CHECK(again.known == 96);
    CHECK(again.loaded == 96);
    CHECK(again.words == "96 of 100 tokens known, 96 of them from the tier; nothing is stored behind them");
    CHECK(second.tier_stats().hits == 1);
    CHECK(second.tier_stats().handed_over == 0);
    CHECK(feed(second, prompt).loaded == 0);
    tokens longer = prompt;
    longer.resize(60);
    auto third = made(3, shared{&store}); // memory for three pages, and the prompt needs four
    auto found = third.match(longer);
    CHECK(found.loaded() <= 48);
    CHECK(third.check());
    CHECK(second.check());
}

TEST_CASE("what was cut and said otherwise is stored under its own past") {
    auto store = kv::memory<>{}.open();
    auto first = made(40, shared{&store});
    const tokens a = some(64, 2), b = some(64, 3);
    auto sequence = first.open();
    REQUIRE(extend(first, sequence, a));
    sequence.truncate(20);
    REQUIRE(extend(first, sequence, b));
    sequence.truncate(16);
    REQUIRE(extend(first, sequence, std::span(a).subspan(16)));
    auto fork = sequence.fork(40);
    REQUIRE(extend(first, fork, b));
    for (const auto* said : {&sequence, &fork}) {
        auto second = made(40, shared{&store});
        const tokens all(said->tokens().begin(), said->tokens().end());
        CHECK(feed(second, all).loaded == all.size() / 16 * 16);
    }
    CHECK(first.check());
}

TEST_CASE("other identities, tenants and keys find nothing") {
    auto store = kv::memory<>{}.open();
    const tokens prompt = some(64, 4);
    auto own = made(20, shared{&store});
    feed(own, prompt);
    auto other = kv::make_cache(kv::identity{.weights = {1, 3}}, shape, pages(20), shared{&store});
    CHECK(feed(other, prompt).known == 0);
    auto tenants = kv::make_tenant_cache(2, kv::identity{.weights = {1, 2}}, shape, pages(40), shared{&store});
    auto alice = *tenants.open(kv::tenant_salt("alice"), 20), bob = *tenants.open(kv::tenant_salt("bob"), 20);
    CHECK(feed(alice, prompt).known == 0);
    CHECK(feed(bob, prompt).known == 0);
    CHECK(tenants.check());
    auto anew = kv::make_tenant_cache(2, kv::identity{.weights = {1, 2}}, shape, pages(40), shared{&store});
    auto bob_again = *anew.open(kv::tenant_salt("bob"), 20);
    CHECK(feed(bob_again, prompt).loaded == 64);
    CHECK(anew.check());
}

TEST_CASE("ten thousand faults of a tier are no wrong row and no lost page") {
    const auto stress = [](kv::faulty<> how, std::size_t rounds, std::uint64_t seed) {
        how.seed = seed;
        how.inner = {.bytes = 60000, .records = 40};
        std::mt19937 dice(static_cast<unsigned>(seed));
        auto cache = made(6, how);
        std::uint64_t struck = 0;
        for (std::size_t round = 0; round < rounds; ++round) {
            tokens prompt = some(64, static_cast<unsigned>(dice() % 12));
            prompt.resize(33 + dice() % 32);
            feed(cache, prompt);
        }
        CHECK(cache.check());
        CHECK(cache.stats().held == 0);
        const auto now = cache.tier_stats();
        struck += now.refused + now.failed;
        CHECK((struck == 0 || now.last));
        return struck;
    };
    std::uint64_t struck = 0;
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
        struck += stress({.flip = 1}, 800, seed);
        struck += stress({.cut = 1}, 800, seed);
        struck += stress({.confuse = 1}, 400, seed);
        struck += stress({.flip = 3, .confuse = 2}, 300, seed);
        struck += stress({.fail = 2}, 300, seed);
        struck += stress({.lose = 2, .repeat = 3, .flip = 2}, 300, seed);
        struck += stress({.disconnect = 100}, 300, seed);
    }
    INFO(struck);
    CHECK(struck >= 10000);
}

TEST_CASE("a storage that fails and a small pool lose nothing under a tier") {
    auto store = kv::memory<>{}.open();
    auto whole = made(20, shared{&store});
    feed(whole, some(100, 5));
    for (std::uint64_t every = 1; every < 9; ++every) {
        auto cache = made(8, shared{&store}, kv::failing<>{.every = every});
        for (int i = 0; i < 5; ++i) {
            auto found = cache.match(some(100, 5));
            CHECK(cache.check());
        }
        CHECK(cache.stats().held == 0);
    }
}
