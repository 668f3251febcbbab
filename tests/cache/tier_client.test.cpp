// SPDX-License-Identifier: MIT
// A cache with a tier, whose rows are a function of all tokens before them: whatever the tier does, no row is wrong.
#include <kvcache/codec/int8.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/testing/fault_injecting.hpp>
#include <kvcache/tier.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/matching.hpp"
#include "past_rows.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using namespace testing_rows;

// One store for several caches, like a disk.
struct shared {
    using role = kv::tier_role;
    kv::tier::memory<>::state* store = nullptr;
    struct state {
        kv::tier::memory<>::state* store;
        template <class Use>
        kv::result<bool> read(const kv::sha256_digest& name, Use&& use) {
            return store->read(name, use);
        }
        kv::result<void> put(const kv::tier_entry& e, std::span<const std::span<const std::byte>> p) {
            return store->put(e, p);
        }
        bool contains(const kv::sha256_digest& name) { return store->contains(name); }
        kv::result<void> erase(const kv::sha256_digest& name) { return store->erase(name); }
        kv::result<void> flush() { return store->flush(); }
        kv::result<void> status() const { return {}; }
        kv::tier_counts counts() const { return store->counts(); }
    };
    state open() const { return {store}; }
};
static_assert(kv::tier_policy<shared>);

} // namespace

TEST_CASE("a cache that begins anew finds in the tier what another has stored") {
    auto store = kv::tier::memory<>{}.open();
    const tokens prompt = some(100, 1);
    {
        auto first = made(20, shared{&store});
        CHECK(prefill(first, prompt).known == 0);
        CHECK(kv::tier_stats_of(first).handed_over == 6);
        CHECK(prefill(first, prompt).loaded == 0); // cached in memory
        CHECK(kv::tier_stats_of(first).handed_over == 6);
    }
    auto second = made(20, shared{&store});
    const answer again = prefill(second, prompt);
    CHECK(again.known == 96);
    CHECK(again.loaded == 96);
    CHECK(again.words == "96 of 100 tokens known, 96 of them from the tier; nothing is stored after them");
    CHECK(kv::tier_stats_of(second).hits == 1);
    CHECK(kv::tier_stats_of(second).handed_over == 0);
    CHECK(prefill(second, prompt).loaded == 0);
    tokens longer = prompt;
    longer.resize(60);
    auto third = made(3, shared{&store}); // memory for three pages, and the prompt needs four
    auto found = kvcache_test::match_in(third, longer);
    CHECK(found.found.loaded_tokens <= 48);
    CHECK(third.check());
    CHECK(second.check());
}

TEST_CASE("a truncation that cuts no page hands no page over again") {
    auto store = kv::tier::memory<>{}.open();
    auto cache = made(20, shared{&store});
    auto sequence = cache.open();
    REQUIRE(extend(cache, sequence, some(48, 1)));
    CHECK(kv::tier_stats_of(cache).handed_over == 3);
    sequence.truncate(48);
    REQUIRE(extend(cache, sequence, some(16, 2)));
    CHECK(kv::tier_stats_of(cache).handed_over == 4);
    sequence.truncate(50);
    REQUIRE(extend(cache, sequence, some(30, 3)));
    CHECK(kv::tier_stats_of(cache).handed_over == 6); // pages that the store has are not written again
    CHECK(cache.check());
}

namespace {

// A null tier; any other call to it is counted.
struct hollow {
    using role = kv::tier_role;
    int* asked = nullptr;
    struct state {
        int* asked;
        template <class Use>
        kv::result<bool> read(const kv::sha256_digest&, Use&&) {
            return ++*asked, false;
        }
        kv::result<void> put(const kv::tier_entry&, std::span<const std::span<const std::byte>>) {
            return ++*asked, kv::result<void>();
        }
        bool contains(const kv::sha256_digest&) { return ++*asked, false; }
        kv::result<void> erase(const kv::sha256_digest&) { return ++*asked, kv::result<void>(); }
        kv::result<void> flush() { return {}; }
        kv::result<void> status() const { return {}; }
        kv::tier_counts counts() const { return {}; }
        bool is_null() const noexcept { return true; }
    };
    state open() const { return {asked}; }
};

} // namespace

TEST_CASE("a tier that holds nothing is never read, through wrappers too") {
    int asked = 0;
    const auto quiet = [&](auto tier) {
        auto cache = made(20, tier);
        CHECK(prefill(cache, some(100, 1)).known == 0);
        CHECK(prefill(cache, some(100, 1)).known == 100);
        CHECK_FALSE(cache.contains(some(100, 2)));
        CHECK(cache.prefetch(some(100, 2)) == 0);
        CHECK(kv::tier_stats_of(cache).asked == 0);
        CHECK(kv::tier_stats_of(cache).handed_over == 0);
        CHECK(asked == 0);
        CHECK(cache.check());
    };
    quiet(hollow{&asked});
    quiet(kv::testing::fault_injecting_tier<hollow>{.inner = {&asked}});
    quiet(kv::tier::cost_gated<hollow>{.inner = {&asked}});
    quiet(kv::tier::chain<hollow, kv::tier::none>{.first = {&asked}, .second = {}});
}

TEST_CASE("a sequence that is truncated and continued differently is stored under its own prefix") {
    auto store = kv::tier::memory<>{}.open();
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
        CHECK(prefill(second, all).loaded == all.size() / 16 * 16);
    }
    CHECK(first.check());
}

TEST_CASE("other identities, tenants and keys find nothing") {
    auto store = kv::tier::memory<>{}.open();
    const tokens prompt = some(64, 4);
    auto own = made(20, shared{&store});
    prefill(own, prompt);
    auto other = kv::make_cache({shape, pages(20), kv::identity{.weights = {1, 3}}}, shared{&store});
    CHECK(prefill(other, prompt).known == 0);
    auto tenants = kv::make_cache(
        {.shape = shape, .limit = pages(40), .id = kv::identity{.weights = {1, 2}}, .tenants = 2}, shared{&store});
    auto alice = *kvcache_test::view_of(tenants, "alice", 20), bob = *kvcache_test::view_of(tenants, "bob", 20);
    CHECK(prefill(alice, prompt).known == 0);
    CHECK(prefill(bob, prompt).known == 0);
    CHECK(tenants.check());
    auto anew = kv::make_cache(
        {.shape = shape, .limit = pages(40), .id = kv::identity{.weights = {1, 2}}, .tenants = 2}, shared{&store});
    auto bob_again = *kvcache_test::view_of(anew, "bob", 20);
    CHECK(prefill(bob_again, prompt).loaded == 64);
    CHECK(anew.check());
}

TEST_CASE("ten thousand faults of a tier are no wrong row and no lost page") {
    const auto stress = [](kv::testing::fault_injecting_tier<> how, std::size_t rounds, std::uint64_t seed) {
        how.seed = seed;
        how.inner = {.bytes = 60000, .records = 40};
        std::mt19937 dice(static_cast<unsigned>(seed));
        auto cache = made(6, how);
        std::uint64_t struck = 0;
        for (std::size_t round = 0; round < rounds; ++round) {
            tokens prompt = some(64, static_cast<unsigned>(dice() % 12));
            prompt.resize(33 + dice() % 32);
            prefill(cache, prompt);
        }
        CHECK(cache.check());
        CHECK(cache.stats().in_use == 0);
        const auto now = kv::tier_stats_of(cache);
        struck += now.refused + now.failed;
        CHECK((struck == 0 || now.last));
        return struck;
    };
    std::uint64_t struck = 0;
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
        struck += stress({.flip = 1}, 900, seed);
        struck += stress({.cut = 1}, 900, seed);
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
    auto store = kv::tier::memory<>{}.open();
    auto whole = made(20, shared{&store});
    prefill(whole, some(100, 5));
    for (std::uint64_t every = 1; every < 9; ++every) {
        auto cache = made(8, shared{&store}, kv::testing::fault_injecting_storage<>{.every = every});
        for (int i = 0; i < 5; ++i) {
            auto found = kvcache_test::match_in(cache, some(100, 5));
            CHECK(cache.check());
        }
        CHECK(cache.stats().in_use == 0);
    }
}

namespace {

// A store that confuses names: any read returns the stored records in turn.
struct mixed_up {
    using role = kv::tier_role;
    std::vector<std::vector<std::byte>>* records = nullptr;
    struct state {
        std::vector<std::vector<std::byte>>* records;
        std::size_t next = 0;
        template <class Use>
        kv::result<bool> read(const kv::sha256_digest&, Use&& use) {
            use(std::span<const std::byte>((*records)[next++ % records->size()]));
            return true;
        }
        kv::result<void> put(const kv::tier_entry&, std::span<const std::span<const std::byte>> pieces) {
            auto& all = records->emplace_back();
            for (const auto piece : pieces)
                all.insert(all.end(), piece.begin(), piece.end());
            return {};
        }
        bool contains(const kv::sha256_digest&) { return !records->empty(); }
        kv::result<void> erase(const kv::sha256_digest&) { return {}; }
        kv::result<void> flush() { return {}; }
        kv::result<void> status() const { return {}; }
        kv::tier_counts counts() const { return {}; }
    };
    state open() const { return {records}; }
};

} // namespace

TEST_CASE("records of wrong neighbours are refused by the field that differs") {
    std::vector<std::vector<std::byte>> records;
    const kv::identity own{.weights = {1, 2}, .tokenizer = {3, 4}, .config = "c", .rope = "r", .weight_format = "f32"};
    const tokens prompt = some(16, 6);
    auto first = kv::make_cache({shape, pages(4), own}, mixed_up{&records});
    prefill(first, prompt);
    REQUIRE(records.size() == 1);
    unsigned asked = 6;
    const auto refusal = [&](kv::identity id, kv::page_shape with, const auto&... policies) {
        auto kept = records;
        auto cache = kv::make_cache({with, pages(8), id}, mixed_up{&kept}, policies...);
        CHECK(kvcache_test::match_in(cache, some(64, asked)).tokens() == 0);
        CHECK(kv::tier_stats_of(cache).refused == 1);
        CHECK(cache.check());
        return kv::tier_stats_of(cache).last ? kv::tier_stats_of(cache).last->field : std::string();
    };
    const auto other = [&](auto change) {
        kv::identity id = own;
        change(id);
        return refusal(id, shape);
    };
    CHECK(other([](auto& id) { id.weights = {1, 3}; }) == "weights");
    CHECK(other([](auto& id) { id.adapter = "lora"; }) == "adapter");
    CHECK(other([](auto& id) { id.tokenizer = {3, 5}; }) == "tokenizer");
    CHECK(other([](auto& id) { id.config = "d"; }) == "config");
    CHECK(other([](auto& id) { id.rope = "other base"; }) == "rope");
    CHECK(other([](auto& id) { id.weight_format = "int8"; }) == "weight_format");
    CHECK(other([](auto& id) { ++id.numeric_contract; }) == "numeric_contract");
    CHECK(other([](auto& id) { id.backend = "cuda 1"; }) == "backend");
    CHECK(other([](auto& id) { id.lineage = "approximate"; }) == "lineage");
    CHECK(other([](auto& id) { id.tenant = "bob"; }) == "tenant");
    CHECK(other([](auto& id) { ++id.format; }) == "format");
    auto wider = shape, deeper = shape;
    wider.tokens = 32;
    CHECK(refusal(own, wider) == "page_tokens");
    deeper.layers = 3;
    CHECK(refusal(own, deeper) == "layout");
    CHECK(refusal(own, shape, kv::codec::int8{}) == "codec");

    // The cache's own identity, but other tokens or an older format.
    asked = 7;
    CHECK(refusal(own, shape) == "name");
    records.front()[kv::record_layout::format] = {};
    CHECK(refusal(own, shape) == "format");
}

namespace {

// Records by name, which the test may change. A record is written only if it is absent.
struct exposed {
    using role = kv::tier_role;
    using map = std::map<std::array<std::byte, 32>, std::vector<std::byte>>;
    map* records;
    struct state {
        map* records;
        template <class Use>
        kv::result<bool> read(const kv::sha256_digest& name, Use&& use) {
            const auto found = records->find(name.bytes);
            if (found != records->end())
                use(std::span<const std::byte>(found->second));
            return found != records->end();
        }
        kv::result<void> put(const kv::tier_entry& entry, std::span<const std::span<const std::byte>> pieces) {
            std::vector<std::byte> all;
            for (const auto piece : pieces)
                all.insert(all.end(), piece.begin(), piece.end());
            records->emplace(entry.name.bytes, std::move(all));
            return {};
        }
        bool contains(const kv::sha256_digest& name) { return records->contains(name.bytes); }
        kv::result<void> erase(const kv::sha256_digest& name) { return records->erase(name.bytes), kv::result<void>(); }
        kv::result<void> flush() { return {}; }
        kv::result<void> status() const { return {}; }
        kv::tier_counts counts() const { return {.written = 41, .failures = 3}; }
    };
    state open() const { return {records}; }
};

} // namespace

TEST_CASE("all damaged records of a prompt are replaced after the first refusal") {
    exposed::map records;
    const tokens prompt = some(100, 1);
    {
        auto first = made(20, exposed{&records});
        prefill(first, prompt);
    }
    REQUIRE(records.size() == 6);
    for (auto& [name, bytes] : records)
        bytes.back() ^= std::byte{1};
    auto second = made(20, exposed{&records});
    CHECK(prefill(second, prompt).loaded == 0);
    CHECK(kv::tier_stats_of(second).refused == 1);
    CHECK(records.size() == 6);
    auto third = made(20, exposed{&records});
    CHECK(prefill(third, prompt).loaded == 96);
    CHECK(kv::tier_stats_of(third).refused == 0);
}

TEST_CASE("the statistics of a cache have what its tier wrote and failed to write") {
    exposed::map records;
    auto cache = made(20, exposed{&records});
    prefill(cache, some(100, 1));
    CHECK(kv::tier_stats_of(cache).handed_over == 6);
    CHECK(kv::tier_stats_of(cache).stored == 41);
    CHECK(kv::tier_stats_of(cache).store_failures == 3);
}

TEST_CASE("a record that was forged without the cache's secret is refused, and one under no secret is not") {
    namespace layout = kv::record_layout;
    const kv::record_authenticator plain("");
    const tokens prompt = some(20, 1);
    for (const std::string key : {"sixteen bytes or more", ""}) {
        const kv::hash::xxh3 secret{.key = key};
        exposed::map records;
        auto victim = made(20, exposed{&records}, secret);
        prefill(victim, prompt);
        REQUIRE(records.size() == 1);
        // The forger knows the layout and the record, and changes a row.
        std::vector<std::byte>& forged = records.begin()->second;
        const auto put = [&](std::size_t at, const kv::sha256_digest& sum) {
            kvcache::ranges::copy(sum.bytes, forged.begin() + static_cast<std::ptrdiff_t>(at));
        };
        const std::span<std::byte> all(forged);
        const auto header = kv::load_little<std::uint64_t>(all, layout::header_bytes);
        forged[header] ^= std::byte{1};
        kv::store_little(all, layout::checksum_kind, static_cast<std::uint32_t>(plain.kind()));
        put(layout::fixed_bytes + layout::part_checksum, plain.of(all.subspan(header)));
        put(layout::checksum, plain.of(all.first(layout::checksum), all.first(header).subspan(layout::fixed_bytes)));

        auto reader = made(20, exposed{&records}, secret);
        const auto found = kvcache_test::match_in(reader, prompt);
        CHECK(found.found.loaded_tokens == (key.empty() ? 16u : 0u));
        CHECK(kv::tier_stats_of(reader).refused == (key.empty() ? 0u : 1u));
        if (!key.empty())
            CHECK(kv::tier_stats_of(reader).last->field == "seal");
    }
}
