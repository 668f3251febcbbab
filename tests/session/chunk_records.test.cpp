// SPDX-License-Identifier: MIT
// Chunks in tiers: another cache over the same tier places them with the same bits, and damage is a miss.
#include <kvcache/cache/compose.hpp>
#include <kvcache/chunk/chunk_records.hpp>
#include <kvcache/codec/float16.hpp>
#include <kvcache/codec/int8.hpp>
#include <kvcache/codec/keep_exact.hpp>
#include <kvcache/index/chunk.hpp>
#include <kvcache/recompute/none.hpp>
#include <kvcache/session/chunk_pipeline.hpp>
#include <kvcache/tier.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "session/chunk_prompts.hpp"
#include "session/small_model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using small::joined;
using small::some;
using small::tokens;

using store_type = std::map<kv::sha256_digest, std::vector<std::byte>>;

// A tier whose records outlive it, for other caches and for damage.
struct shared_tier {
    using role = kv::tier_role;
    store_type* records = nullptr;
    struct state {
        store_type* records;
        std::uint64_t reads = 0;

        template <class Use>
        [[nodiscard]] kv::result<bool> read(const kv::sha256_digest& name, Use&& use) {
            ++reads;
            const auto at = records->find(name);
            if (at != records->end())
                use(std::span<const std::byte>(at->second));
            return at != records->end();
        }
        [[nodiscard]] kv::result<void> put(const kv::tier_entry& entry,
                                           std::span<const std::span<const std::byte>> pieces) {
            std::vector<std::byte> whole;
            for (const auto piece : pieces)
                whole.insert(whole.end(), piece.begin(), piece.end());
            records->emplace(entry.name, std::move(whole));
            return {};
        }
        [[nodiscard]] bool contains(const kv::sha256_digest& name) const { return records->count(name) > 0; }
        [[nodiscard]] kv::result<void> erase(const kv::sha256_digest& name) {
            records->erase(name);
            return {};
        }
        [[nodiscard]] static kv::result<void> flush() { return {}; }
        [[nodiscard]] static kv::result<void> status() { return {}; }
        [[nodiscard]] kv::tier_counts counts() const { return {.records = records->size()}; }
    };
    [[nodiscard]] state open() const { return {records}; }
};
static_assert(kv::tier_policy<shared_tier>);

template <class Codec = kv::codec::f32, class Tier = shared_tier>
struct host {
    using cache = kv::cache<kv::index::chunk, kv::recompute::none, Codec, Tier>;

    explicit host(Tier tier, bool store = true, Codec codec = {})
        : pool(1),
          held(kv::make_cache({small::model().shape(16), {.pages = 200}, small::model().id({1, 2})},
                              kv::index::chunk{.least = 8}, kv::recompute::none{}, std::move(codec), std::move(tier))),
          pipeline(held, small::model(), pool, {.split = {.size = 64, .least = 8}, .store = store}) {}
    ~host() { CHECK(held.check().has_value()); }

    auto prefill(const tokens& prompt) {
        auto done = pipeline.prefill(prompt, kv::reuse_mode::chunks);
        REQUIRE(done.has_value());
        return std::move(*done);
    }
    void warm(const tokens& text) { REQUIRE(pipeline.warm(text, {})->chunks == 1); }
    [[nodiscard]] kv::tier_stats tier() const { return kv::tier_stats_of(held); }

    kv::thread_pool pool;
    cache held;
    kv::chunk_pipeline<cache, kv::transformer> pipeline;
};

bool same(const kv::matrix& a, const kv::matrix& b) {
    return a.size() == b.size() && a.size() > 0 &&
           std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size()) * sizeof(float)) == 0;
}

const tokens a = some(48, 1), b = some(33, 2), c = some(61, 3), gap = some(7, 5), question = some(9, 4);
const tokens asked = joined({gap, c, a, gap, b, question});

} // namespace

using codecs = std::tuple<kv::codec::f32, kv::codec::bf16, kv::codec::int8, kv::codec::keep_recent<kv::codec::int8>>;

TEMPLATE_LIST_TEST_CASE("chunks that another cache stored are placed with the same bits, and not computed", "",
                        codecs) {
    store_type records;
    kv::matrix logits;
    kv::reuse_counts counts;
    {
        host<TestType> first({&records});
        for (const tokens& one : {a, b, c})
            first.warm(one);
        CHECK(first.tier().chunks == 3);
        auto done = first.prefill(asked);
        logits = done.logits;
        counts = done.counts;
        CHECK(counts.approximate > 100);
    }
    host<TestType> second({&records});
    const auto done = second.prefill(asked);
    CHECK(done.counts.approximate == counts.approximate);
    CHECK(done.counts.layer_rows == counts.layer_rows);
    CHECK(same(done.logits, logits));
    CHECK(second.tier().loaded_chunks == 3);
    CHECK(second.tier().refused == 0);
    const auto again = second.prefill(joined({b, c, question})); // now from memory
    CHECK(again.counts.approximate > 0);
    CHECK(second.tier().loaded_chunks == 3);
}

TEST_CASE("chunks inside a prompt are stored with the tokens before them; chunks that begin alike are told apart") {
    store_type records;
    const tokens begin = some(8, 11), x = joined({begin, some(56, 12)}), y = joined({begin, some(56, 13)});
    {
        host<> first({&records});
        CHECK(first.prefill(joined({x, y, question})).counts.approximate == 0); // three chunks, the last one after two
        CHECK(first.tier().chunks == 3);
        CHECK(first.prefill(joined({x, y, question})).counts.exact > 0);
        CHECK(first.tier().chunks == 3);
    }
    host<> second({&records}, false);
    CHECK(second.prefill(joined({gap, y, gap, x, gap})).counts.approximate == 128);
    CHECK(second.tier().loaded_chunks == 2);
    const auto longer = second.prefill(joined({gap, some(8, 14), question})); // a chunk of nine tokens
    CHECK(longer.counts.approximate == 8);                                    // the last token is never reused
}

TEST_CASE("chunks with too long a context have no record; neither has a chunk that is too short") {
    store_type records;
    host<> one({&records}, false);
    const auto made = one.prefill(some(200, 6));
    kv::chunk_reuse<host<>::cache> chunks(one.held);
    CHECK(chunks.add(made.sequence, 190, 10) == 10); // 190 > 15 * 10
    CHECK(chunks.add(made.sequence, 180, 7) == 0);
    CHECK(one.tier().chunks == 0);
    CHECK(chunks.add(made.sequence, 150, 10) == 10);
    CHECK(one.tier().chunks == 1);
    CHECK(chunks.add(made.sequence, 150, 10) == 10); // it is there
    CHECK(one.tier().chunks == 1);
}

TEST_CASE("a chunk's record that the tier lost is written again") {
    store_type records;
    host<> one({&records}, false);
    one.warm(a);
    records.clear();
    one.warm(a);
    CHECK(one.tier().chunks == 2);
}

TEST_CASE("tenants do not find each other's chunks in a tier, nor do caches of other models") {
    store_type records;
    using cache = kv::cache<kv::index::chunk, kv::recompute::none, shared_tier>;
    kv::thread_pool pool(1);
    const auto placed = [&](const char* salt, std::uint64_t weights, bool warms) {
        auto held = kv::make_cache({.shape = small::model().shape(16),
                                    .limit = {.pages = 100},
                                    .id = small::model().id({weights, 2}),
                                    .tenants = 4},
                                   kv::index::chunk{.least = 8}, kv::recompute::none{}, shared_tier{&records});
        const auto who = held.open_tenant(kv::tenant_salt(salt), 100);
        REQUIRE(who.has_value());
        kv::pipeline<cache, kv::transformer> exact(held, small::model(), pool, 256);
        kv::chunk_reuse<cache> chunks(held);
        auto sequence = held.open(*who);
        if (warms) {
            kv::matrix logits;
            const kv::batch_entry<cache> run{&sequence, a, kv::logits_mode::none};
            REQUIRE(exact.extend(std::span(&run, 1), logits).has_value());
            CHECK(chunks.add(sequence, 0, a.size()) == a.size());
        }
        auto empty = held.open(*who);
        return chunks.match(empty, joined({gap, a, gap})).map().tokens(kv::reuse_kind::approximate);
    };
    CHECK(placed("alice", 1, true) == a.size());
    CHECK(placed("alice", 1, false) == a.size());
    CHECK(placed("bob", 1, false) == 0);
    CHECK(placed("alice", 2, false) == 0);
}

namespace {

// What a run of `asked` gives for each set of chunks that memory has.
std::map<std::vector<std::size_t>, kv::matrix> all_answers() {
    std::map<std::vector<std::size_t>, kv::matrix> made;
    for (unsigned set = 0; set < 8; ++set) {
        store_type none;
        host<> one({&none}, false);
        for (unsigned i = 0; i < 3; ++i)
            if ((set >> i & 1) != 0)
                one.warm(i == 0 ? a : i == 1 ? b : c);
        auto done = one.prefill(asked);
        std::vector<std::size_t> where;
        for (const kv::prompt_span& span : done.spans)
            if (span.kind == kv::reuse_kind::approximate)
                where.push_back(span.first);
        made[where] = done.logits;
    }
    REQUIRE(made.size() == 8);
    return made;
}

void faults(std::size_t rounds, std::uint64_t seed) {
    const auto answers = all_answers();
    store_type sound;
    {
        host<> first({&sound}, false);
        for (const tokens& one : {a, b, c})
            first.warm(one);
    }
    std::mt19937_64 dice(seed);
    std::size_t missed = 0;
    for (std::size_t round = 0; round < rounds; ++round) {
        store_type records = sound;
        const auto some_record = [&] {
            return std::next(records.begin(), static_cast<std::ptrdiff_t>(dice() % records.size()));
        };
        auto& bytes = some_record()->second;
        switch (dice() % 4) {
        case 0:
            bytes[dice() % bytes.size()] ^= static_cast<std::byte>(1u << dice() % 8);
            break;
        case 1:
            bytes.resize(dice() % bytes.size());
            break;
        case 2: // another record's bytes
            bytes = some_record()->second;
            break;
        default:
            records.erase(some_record());
        }
        host<> second({&records}, false);
        const auto done = second.prefill(asked);
        std::vector<std::size_t> where;
        for (const kv::prompt_span& span : done.spans)
            if (span.kind == kv::reuse_kind::approximate)
                where.push_back(span.first);
        missed += where.size() < 3;
        const auto right = answers.find(where);
        REQUIRE(right != answers.end());
        if (!same(right->second, done.logits))
            FAIL("seed " << seed << ", round " << round << ": a chunk was placed wrong");
    }
    CHECK(missed > rounds / 2);
}

} // namespace

TEST_CASE("damaged records of chunks are misses") {
    faults(120, 1);
}
TEST_CASE("damaged records of chunks are misses, many times", "[.long]") {
    faults(10'000, 2);
}
