// SPDX-License-Identifier: MIT
#include <kvcache/codec/f32.hpp>
#include <kvcache/testing/fault_injecting.hpp>
#include <kvcache/testing/tier_conformance.hpp>
#include <kvcache/tier.hpp>
#include <kvcache/tier/compressed.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <new>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/past_rows.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using namespace testing_rows;

// Records by name, which the test sees and changes.
struct exposed {
    using role = kv::tier_role;
    using map = std::map<std::array<std::byte, 32>, std::vector<std::byte>>;
    map* records = nullptr;
    struct state {
        map* records;
        template <class Use>
        kv::result<bool> read(const kv::sha256_digest& name, Use&& use) {
            const auto found = records->find(name.bytes);
            if (found == records->end())
                return false;
            const std::vector<std::byte> exact(found->second); // an allocation of its very size
            use(std::span<const std::byte>(exact));
            return true;
        }
        kv::result<void> put(const kv::tier_entry& entry, std::span<const std::span<const std::byte>> pieces) {
            records->emplace(entry.name.bytes, kv::tier::joined(pieces));
            return {};
        }
        bool contains(const kv::sha256_digest& name) { return records->contains(name.bytes); }
        kv::result<void> erase(const kv::sha256_digest& name) {
            records->erase(name.bytes);
            return {};
        }
        kv::result<void> flush() { return {}; }
        kv::result<void> status() const { return {}; }
        kv::tier_counts counts() const { return {.records = records->size()}; }
    };
    state open() const { return {records}; }
};
static_assert(kv::tier_policy<exposed>);

using compressed_map = kv::tier::compressed<exposed>;

// A code of another name: every bit inverted.
struct inverted {
    std::string name() const { return "inverted"; }
    std::vector<std::byte> encode(std::span<const std::byte> bytes) const {
        std::vector<std::byte> made(bytes.begin(), bytes.end());
        for (std::byte& one : made)
            one = ~one;
        return made;
    }
    bool decode(std::span<const std::byte> code, std::vector<std::byte>& to) const {
        to = encode(code);
        return true;
    }
};

// A code for which there is no memory.
struct starved : inverted {
    std::vector<std::byte> encode(std::span<const std::byte>) const { throw std::bad_alloc(); }
};

std::size_t bytes_of(const exposed::map& records) {
    std::size_t bytes = 0;
    for (const auto& [name, record] : records)
        bytes += record.size();
    return bytes;
}

} // namespace

TEST_CASE("compressed tiers pass the conformance tests") {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
        CHECK(kv::testing::tier_conformance(kv::tier::compressed<>{.inner = {.records = 7}}, seed).empty());
        CHECK(kv::testing::tier_conformance(kv::tier::compressed<kv::tier::none>{}, seed).empty());
        CHECK(kv::testing::tier_conformance(kv::tier::compressed<kv::tier::memory<>, inverted>{}, seed).empty());
        CHECK(kv::testing::tier_conformance(kv::tier::compressed<kv::tier::chain<>>{}, seed).empty());
        const kv::tier::chain<kv::tier::memory<>, kv::tier::compressed<>> second{.first = {.records = 3}};
        CHECK(kv::testing::tier_conformance(second, seed).empty());
    }
}

TEST_CASE("pages come back from a compressed store bit for bit, and take fewer bytes") {
    const tokens prompt = some(100, 1);
    exposed::map plain, small;
    {
        auto first = made(20, exposed{&plain});
        prefill(first, prompt);
        auto second = made(20, compressed_map{{&small}});
        prefill(second, prompt);
        CHECK(kv::tier_stats_of(second).handed_over == 6);
        CHECK(second.tier().counts().records == 6);
    }
    CHECK(small.size() == plain.size());
    CHECK(bytes_of(small) < bytes_of(plain));
    auto cache = made(20, compressed_map{{&small}});
    const answer again = prefill(cache, prompt); // compares every row
    CHECK(again.loaded == 96);
    CHECK(kv::tier_stats_of(cache).refused == 0);
    CHECK(cache.check());

    // The records themselves.
    auto tier = compressed_map{{&small}}.open();
    for (const auto& [name, record] : plain) {
        bool same = false;
        const auto found = tier.read({name}, [&, &record = record](std::span<const std::byte> bytes) {
            same = std::equal(bytes.begin(), bytes.end(), record.begin(), record.end());
        });
        REQUIRE(found);
        CHECK((*found && same));
    }
}

TEST_CASE("plain records, compressed ones and those of another code share a store and are never mixed up") {
    const tokens prompt = some(64, 2);
    exposed::map store;
    const auto loads = [&](auto tier) {
        auto cache = made(20, tier);
        const std::size_t loaded = prefill(cache, prompt).loaded;
        CHECK(kv::tier_stats_of(cache).refused == 0);
        CHECK(cache.check());
        return loaded;
    };
    using other = kv::tier::compressed<exposed, inverted>;
    CHECK(loads(exposed{&store}) == 0);
    CHECK(loads(compressed_map{{&store}}) == 0);
    CHECK(loads(other{{&store}}) == 0);
    CHECK(store.size() == 12);
    CHECK(loads(exposed{&store}) == 64);
    CHECK(loads(compressed_map{{&store}}) == 64);
    CHECK(loads(other{{&store}}) == 64);
}

TEST_CASE("a damaged compressed record is refused, erased, counted and computed again") {
    const unsigned seed = 5;
    INFO("seed " << seed);
    std::mt19937 dice(seed);
    const tokens prompt = some(48, 3);
    exposed::map whole;
    {
        auto cache = made(20, compressed_map{{&whole}});
        prefill(cache, prompt);
    }
    REQUIRE(whole.size() == 3);
    for (int round = 0; round < 600; ++round) {
        exposed::map store = whole;
        auto victim = store.begin();
        std::advance(victim, dice() % 3);
        auto& bytes = victim->second;
        switch (round % 4) {
        case 0:
            bytes.resize(dice() % bytes.size());
            break;
        case 1:
            bytes.resize(bytes.size() + 1 + dice() % 70, static_cast<std::byte>(dice()));
            break;
        default:
            bytes[round % 8 == 2 ? dice() % 40 : dice() % bytes.size()] ^= static_cast<std::byte>(1 + dice() % 255);
        }
        auto cache = made(20, compressed_map{{&store}});
        prefill(cache, prompt); // compares every row that was loaded
        REQUIRE(kv::tier_stats_of(cache).refused + kv::tier_stats_of(cache).hits >= 1);
        if (kv::tier_stats_of(cache).refused == 0) // the bits after a stream's last code say nothing
            REQUIRE(kv::tier_stats_of(cache).loaded_tokens == 48);
        REQUIRE(cache.check());
        REQUIRE(store.size() == 3);
        if (round % 8 > 0)
            continue;
        auto later = made(20, compressed_map{{&store}}); // finds what was handed over again
        REQUIRE(prefill(later, prompt).loaded == 48);
        REQUIRE(kv::tier_stats_of(later).refused == 0);
    }
}

TEST_CASE("faults of the inner tier are no wrong row and no lost page") {
    std::uint64_t struck = 0;
    const auto stress = [&](kv::testing::fault_injecting_tier<> how, std::uint64_t seed) {
        how.seed = seed;
        how.inner = {.bytes = 60000, .records = 40};
        std::mt19937 dice(static_cast<unsigned>(seed));
        auto cache = made(6, kv::tier::compressed<kv::testing::fault_injecting_tier<>>{how});
        for (std::size_t round = 0; round < 200; ++round) {
            tokens prompt = some(64, static_cast<unsigned>(dice() % 12));
            prompt.resize(33 + dice() % 32);
            prefill(cache, prompt);
        }
        CHECK(cache.check());
        CHECK(cache.stats().in_use == 0);
        struck += kv::tier_stats_of(cache).refused + kv::tier_stats_of(cache).failed;
    };
    for (std::uint64_t seed = 0; seed < 2; ++seed) {
        stress({.flip = 1}, seed);
        stress({.cut = 1}, seed);
        stress({.confuse = 1}, seed);
        stress({.fail = 2}, seed);
        stress({.lose = 2, .repeat = 3, .flip = 2}, seed);
        stress({.disconnect = 100}, seed);
    }
    INFO(struck);
    CHECK(struck >= 500);
}

TEST_CASE("nothing is compressed for a tier that holds nothing") {
    auto cache = made(20, kv::tier::compressed<kv::tier::none, starved>{}); // whose code would fail
    prefill(cache, some(64, 4));
    CHECK(kv::tier_stats_of(cache).handed_over == 0);
    CHECK(kv::tier_stats_of(cache).failed == 0);
    CHECK(kv::tier_stats_of(cache).asked == 0);
}

TEST_CASE("the inner tier's budget is of compressed bytes") {
    const std::vector<std::byte> zeros(4096);
    const std::span<const std::byte> pieces[] = {zeros};
    auto plain = kv::tier::memory<>{.bytes = 8192}.open();
    auto small = kv::tier::compressed<>{.inner = {.bytes = 8192}}.open();
    for (std::uint64_t n = 0; n < 8; ++n) {
        REQUIRE(plain.put(kv::testing::detail::tier_name(n), pieces));
        REQUIRE(small.put(kv::testing::detail::tier_name(n), pieces));
    }
    CHECK(plain.counts().records == 2);
    CHECK(small.counts().records == 8);
    CHECK(small.counts().bytes < 8192);
    CHECK(small.counts().bytes == small.inner().counts().bytes);
    CHECK(small.counts().evicted == 0);
}

TEST_CASE("a record for which there is no memory is a counted failure") {
    auto cache = made(20, kv::tier::compressed<kv::tier::memory<>, starved>{});
    prefill(cache, some(64, 4));
    CHECK(kv::tier_stats_of(cache).failed == 4);
    CHECK(kv::tier_stats_of(cache).store_failures == 4);
    CHECK(cache.tier().counts().records == 0);
    CHECK(prefill(cache, some(64, 4)).known == 64);
    CHECK(cache.check());
}
