// SPDX-License-Identifier: MIT
// Damaged records on disk, and failing calls of the store: each is refused or recomputed and counted, no row is
// wrong, and the store is consistent afterwards.
#include <kvcache/testing/fault_injecting.hpp>
#include <kvcache/testing/violations.hpp>
#include <kvcache/tier/lmdb.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/past_rows.hpp"
#include "model/huggingface/files.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using namespace testing_rows;
using bytes = std::vector<std::byte>;
using disk = kv::tier::lmdb<>::state;

// One store for several new caches. It records the names requested from it.
struct shared {
    using role = kv::tier_role;
    disk* store = nullptr;
    std::vector<kv::sha256_digest>* asked = nullptr;
    struct state {
        disk* store;
        std::vector<kv::sha256_digest>* asked;
        template <class Use>
        kv::result<bool> read(const kv::sha256_digest& name, Use&& use) {
            if (asked != nullptr)
                asked->push_back(name);
            return store->read(name, use);
        }
        kv::result<void> put(const kv::tier_entry& e, std::span<const std::span<const std::byte>> p) {
            return store->put(e, p);
        }
        bool contains(const kv::sha256_digest& name) { return store->contains(name); }
        kv::result<void> erase(const kv::sha256_digest& name) { return store->erase(name); }
        kv::result<void> flush() { return store->flush(); }
        kv::result<void> status() const { return store->status(); }
        kv::tier_counts counts() const { return store->counts(); }
    };
    state open() const { return {store, asked}; }
};
static_assert(kv::tier_policy<shared>);

bytes record_of(disk& store, const kv::sha256_digest& name) {
    bytes made;
    REQUIRE(*store.read(name, [&](std::span<const std::byte> it) { made.assign(it.begin(), it.end()); }));
    return made;
}

void replace(disk& store, const kv::sha256_digest& name, const bytes& by) {
    const std::span<const std::byte> pieces[] = {by};
    REQUIRE(store.erase(name));
    REQUIRE(store.put({.name = name}, pieces));
    REQUIRE(store.flush());
}

void strike(std::uint64_t faults) {
    const testing_files::temporary_directory directory;
    auto store = kv::tier::lmdb<>{.directory = directory.path(),
                                  .bytes = std::size_t{4} << 20,
                                  .records = 500,
                                  .queue_bytes = std::size_t{4} << 20,
                                  .sync = kv::tier::sync_policy::by_the_system,
                                  .gather = std::chrono::milliseconds(0)}
                     .open();
    REQUIRE(store.status());
    constexpr std::size_t prompts = 8, pages_each = 3;
    std::vector<tokens> said;
    std::vector<std::vector<kv::sha256_digest>> names(prompts);
    for (std::size_t i = 0; i < prompts; ++i) {
        said.push_back(some(16 * pages_each + 5, static_cast<unsigned>(i)));
        auto first = made(8, shared{&store});
        prefill(first, said[i]);
        REQUIRE(store.flush());
        auto second = made(8, shared{&store, &names[i]});
        REQUIRE(prefill(second, said[i]).loaded == 16 * pages_each);
        REQUIRE(names[i].size() == pages_each);
    }
    kv::testing::detail::choices choose(3);
    std::map<std::string, std::uint64_t> refused;
    std::uint64_t failed = 0, missed = 0;
    for (std::uint64_t struck = 0; struck < faults; ++struck) {
        const auto i = static_cast<std::size_t>(choose.below(prompts));
        const auto page = static_cast<std::size_t>(choose.below(pages_each));
        const kv::sha256_digest& name = names[i][page];
        const auto kind = choose.below(8);
        if (kind == 7) { // a call: each of the cache's calls in turn is the first to fail
            auto cache = made(8, kv::testing::fault_injecting_tier<shared>{
                                     .disconnect = 1 + choose.below(3 * pages_each), .inner = {&store}});
            const auto found = prefill(cache, said[i]);
            const auto now = kv::tier_stats_of(cache);
            REQUIRE(now.refused == 0);
            REQUIRE((now.failed > 0 || found.loaded == 16 * pages_each)); // it needs fewer calls
            failed += now.failed > 0;
            REQUIRE(cache.check());
            REQUIRE(cache.stats().in_use == 0);
            REQUIRE(store.flush());
            continue;
        }
        const bytes sound = record_of(store, name);
        bytes bad = sound;
        const auto place = static_cast<std::size_t>(choose.below(sound.size()));
        if (kind < 2) {
            const std::size_t at = kind == 0 ? place % 400 : place;
            bad[at] ^= static_cast<std::byte>(1u << choose.below(8));
        } else if (kind == 2) {
            bad.resize(place);
        } else if (kind == 3) {
            bad.resize(sound.size() + 1 + choose.below(5000), static_cast<std::byte>(choose.below(256)));
        } else if (kind == 4) { // another prompt's record
            bad = record_of(store, names[(i + 1) % prompts][page]);
        } else if (kind == 5) { // the page before or after
            bad = record_of(store, names[i][(page + 1) % pages_each]);
        } else { // a lost record
            REQUIRE(store.erase(name));
            REQUIRE(store.flush());
        }
        if (kind != 6)
            replace(store, name, bad);
        auto cache = made(8, shared{&store});
        const auto found = prefill(cache, said[i]); // checks every row
        const auto now = kv::tier_stats_of(cache);
        REQUIRE(found.loaded == 16 * page);
        REQUIRE(now.failed == 0);
        REQUIRE(now.refused == (kind != 6));
        if (kind == 6)
            ++missed;
        else
            ++refused[now.last->field];
        REQUIRE(cache.check());
        REQUIRE(cache.stats().in_use == 0);
        REQUIRE(store.flush());
        REQUIRE(record_of(store, name).size() == sound.size()); // erased, recomputed and stored again
    }
    std::uint64_t all = failed + missed;
    for (const auto& [field, count] : refused)
        all += count;
    CHECK(all <= faults);
    CHECK(all > faults * 9 / 10); // a call that is never made does not fail
    CHECK(failed > faults / 50);
    CHECK(refused.size() > 7); // for many reasons
    CHECK(store.counts().failures == 0);
}

} // namespace

TEST_CASE("single faults of records on the disk are no wrong row and no lost page") {
    strike(1000);
}

TEST_CASE("ten thousand single faults of records on the disk are no wrong row and no lost page", "[.long]") {
    strike(10000);
}
