// SPDX-License-Identifier: MIT
// A hit equals a miss, bit for bit, where the cache owns the memory of layer groups: in several formats, from memory
// and from tiers.
#include <kvcache/cache.hpp>
#include <kvcache/codec/int8.hpp>
#include <kvcache/codec/row_major.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/layer_groups.hpp>
#include <kvcache/tier.hpp>
#include <kvcache/tier/lmdb.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernel/numbers.hpp"
#include "layers/hybrid_engine.hpp"
#include "model/huggingface/files.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache_test;

namespace {

using tokens = std::vector<kv::token_id>;
using rows_of_logits = std::vector<std::vector<float>>;

/// An engine over a cache that owns its memory.
template <class Cache>
class owned_engine {
public:
    /// A prompt, the state after the tokens that its sequence has, and the logits of the rows that were computed.
    struct conversation {
        typename Cache::sequence sequence;
        tokens all;
        hybrid::state state = {};
        rows_of_logits logits = {};
    };

    owned_engine(hybrid_engine& engine, Cache& cache) : engine_(engine), cache_(cache) {}

    [[nodiscard]] conversation open(tokens prompt) {
        conversation made{cache_.open(prompt), std::move(prompt)};
        begin(made);
        return made;
    }
    [[nodiscard]] conversation fork(const conversation& from, std::size_t count) {
        conversation made{from.sequence.fork(count), from.all, from.state, {}};
        if (made.sequence.size() < from.sequence.size())
            begin(made);
        return made;
    }
    void truncate(conversation& one, std::size_t count) {
        one.sequence.truncate(count);
        if (one.sequence.size() < one.logits.size())
            begin(one);
    }

    /// Computes the rest of several conversations together, at most so many rows of each at a time.
    void finish(std::span<conversation* const> batch, std::size_t at_once) {
        while (true) {
            std::vector<conversation*> left;
            for (conversation* one : batch)
                if (one->sequence.size() < one->all.size())
                    left.push_back(one);
            if (left.empty())
                return;
            run(left, at_once);
        }
    }
    rows_of_logits finished(conversation& one, std::size_t at_once) {
        conversation* const all[] = {&one};
        finish(all, at_once);
        return one.logits;
    }

private:
    // What the engine sees of the leases of a batch.
    struct memory {
        std::vector<typename Cache::lease>& leases;
        std::uint32_t page_tokens;

        template <class F>
        void with_source(std::size_t group, F&& f) {
            leases.front().with_source(group, f);
        }
        void write(std::size_t group, kv::layer_id layer, std::size_t part, std::size_t row, kv::page_id, std::uint32_t,
                   std::span<const float> keys, std::span<const float> values) {
            leases[part].write(group, layer, row, keys, values);
        }
    };

    // The state where a sequence begins that shares tokens with others.
    void begin(conversation& one) {
        one.state = {};
        one.logits.resize(one.sequence.size());
        if (one.sequence.size() == 0)
            return;
        const auto bytes = one.sequence.state_of(hybrid::recurrent);
        REQUIRE(bytes.size() == sizeof one.state);
        std::memcpy(&one.state, bytes.data(), bytes.size());
    }

    void run(std::span<conversation* const> batch, std::size_t at_once) {
        const std::uint32_t page_tokens = cache_.shape().tokens;
        std::vector<typename Cache::lease> leases;
        std::vector<hybrid_part> parts;
        std::vector<std::vector<hybrid::state>> snapshots(batch.size());
        std::vector<std::vector<std::uint32_t>> blocks(batch.size());
        for (std::size_t i = 0; i < batch.size(); ++i) {
            conversation& one = *batch[i];
            const std::size_t first = one.sequence.size(), rows = std::min(at_once, one.all.size() - first);
            auto lease = cache_.reserve(one.sequence, rows, {.max_batch_tokens = rows});
            REQUIRE(lease.has_value());
            hybrid_part part{.tokens = std::span(one.all).subspan(first, rows),
                             .first = first,
                             .tables = {lease->blocks(hybrid::full), lease->blocks(hybrid::windowed)},
                             .state = &one.state};
            std::vector<kv::page_entry> entries;
            part.residual = lease->pages(hybrid::full, entries).residual;
            REQUIRE(lease->pages(hybrid::alias, entries).table.size() == part.tables[1].size());
            for (std::size_t entry = 0; entry < entries.size(); ++entry)
                REQUIRE(static_cast<std::int32_t>(kv::index_of(entries[entry].page)) == part.tables[1][entry]);
            snapshots[i].resize(rows);
            for (std::size_t at = first / page_tokens * page_tokens + page_tokens; at <= first + rows;
                 at += page_tokens)
                if (const auto block = lease->snapshot(hybrid::recurrent, at)) {
                    part.snapshots.emplace_back(at, &snapshots[i][blocks[i].size()]);
                    blocks[i].push_back(*block);
                }
            parts.push_back(std::move(part));
            leases.push_back(std::move(*lease));
        }
        memory of{leases, page_tokens};
        engine_.run(parts, of);
        for (std::size_t i = 0; i < batch.size(); ++i) {
            for (std::size_t n = 0; n < blocks[i].size(); ++n)
                std::memcpy(leases[i].state_of(hybrid::recurrent, blocks[i][n]).data(), &snapshots[i][n],
                            sizeof(hybrid::state));
            for (std::size_t row = 0; row < parts[i].tokens.size(); ++row) {
                const auto from = parts[i].logits.begin() + static_cast<std::ptrdiff_t>(row * hybrid::vocabulary);
                batch[i]->logits.emplace_back(from, from + hybrid::vocabulary);
            }
            leases[i].commit(parts[i].tokens);
        }
    }

    hybrid_engine& engine_;
    Cache& cache_;
};

[[nodiscard]] hybrid_engine& engine_of(std::size_t threads) {
    static std::array<hybrid_engine, 2> made{hybrid_engine(1), hybrid_engine(2)};
    return made[threads - 1];
}

[[nodiscard]] tokens text(std::size_t count, int seed) {
    tokens made;
    for (std::size_t i = 0; i < count; ++i)
        made.push_back(kv::token_id{static_cast<std::int32_t>((i * i + 7 * i + static_cast<std::size_t>(seed)) % 24)});
    return made;
}
/// The first tokens of one text, and then another.
[[nodiscard]] tokens joined(const tokens& a, std::size_t count, const tokens& b) {
    tokens made(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(count));
    made.insert(made.end(), b.begin(), b.end());
    return made;
}

/// Checks that the rows that were computed, from the last `computed` on, have the bits of others.
void same_bits(const rows_of_logits& got, const rows_of_logits& wanted) {
    REQUIRE(got.size() == wanted.size());
    std::size_t computed = 0;
    for (std::size_t row = 0; row < got.size(); ++row)
        if (!got[row].empty()) {
            ++computed;
            if (std::memcmp(got[row].data(), wanted[row].data(), got[row].size() * sizeof(float)) != 0)
                FAIL("row " << row << " differs");
        }
    REQUIRE(computed > 0);
}

/// A cache of the engine's groups in a format, and what it computes without any hit.
template <class Codec>
struct format {
    Codec codec;
    std::uint32_t page_tokens;

    template <class... Policies>
    [[nodiscard]] auto cache(Policies... more) const {
        return kv::make_cache({.limit = {.bytes = std::size_t{8} << 20}, .id = {.rope = "of the engine"}}, codec,
                              kv::layers::grouped{.layout = hybrid::layout(page_tokens)}, kv::eviction::lru{}, more...);
    }
    [[nodiscard]] rows_of_logits cold(const tokens& all) const {
        auto fresh = cache();
        owned_engine engine(engine_of(1), fresh);
        auto one = engine.open(all);
        return engine.finished(one, all.size());
    }
};

/// Calls `f` with formats in pages of 16 and 64 tokens.
template <class F>
void in_formats(F&& f) {
    for (const std::uint32_t page_tokens : {16u, 64u}) {
        INFO("pages of " << page_tokens << " tokens");
        f(format<kv::codec::f32>{{}, page_tokens});
        f(format<kv::codec::by_group<kv::codec::int8, kv::codec::f32>>{{}, page_tokens});
        f(format<kv::codec::by_group<kv::codec::nhd_bf16, kv::codec::nhd_f16>>{{}, page_tokens});
    }
}

} // namespace

TEST_CASE("in float32 the logits are those of an engine with blocks of its own") {
    const tokens all = text(300, 1);
    const std::vector<float> alone = computed_alone(engine_of(1), all);
    const rows_of_logits got = format<kv::codec::f32>{{}, 16}.cold(all);
    for (std::size_t row = 0; row < got.size(); ++row)
        if (std::memcmp(got[row].data(), alone.data() + row * hybrid::vocabulary, hybrid::vocabulary * sizeof(float)) !=
            0)
            FAIL("row " << row << " differs");
}

TEST_CASE("what was found in memory gives the bits of what is computed, in each format and split") {
    in_formats([](const auto& of) {
        const tokens first = text(600, 1), second = joined(first, 400, text(150, 5));
        const rows_of_logits alone = of.cold(first), other = of.cold(second);
        for (const std::size_t split : {1, 7, 64, 513})
            for (const std::size_t threads : {1, 2}) {
                INFO("split " << split << ", threads " << threads);
                auto cache = of.cache();
                owned_engine engine(engine_of(threads), cache);
                auto one = engine.open(first);
                same_bits(engine.finished(one, split), alone);
                auto next = engine.open(second);
                CHECK(next.sequence.size() == 400 / of.page_tokens * of.page_tokens);
                same_bits(engine.finished(next, split), other);
                auto again = engine.open(first);
                CHECK(again.sequence.size() == 599 / of.page_tokens * of.page_tokens);
                same_bits(engine.finished(again, split), alone);
                CHECK(cache.check().has_value());
            }
    });
}

TEST_CASE("conversations in one batch have the bits that each has alone") {
    in_formats([](const auto& of) {
        auto cache = of.cache();
        owned_engine engine(engine_of(2), cache);
        const tokens base = text(200, 1);
        std::vector<tokens> prompts;
        for (int i = 0; i < 5; ++i)
            prompts.push_back(joined(base, static_cast<std::size_t>(40 * i), text(130, 3 + i)));
        auto known = engine.open(base);
        static_cast<void>(engine.finished(known, 64));
        std::vector<typename owned_engine<decltype(cache)>::conversation> all;
        for (const tokens& prompt : prompts)
            all.push_back(engine.open(prompt));
        std::vector<typename owned_engine<decltype(cache)>::conversation*> batch;
        for (auto& one : all)
            batch.push_back(&one);
        engine.finish(batch, 50);
        for (std::size_t i = 0; i < all.size(); ++i)
            same_bits(all[i].logits, of.cold(prompts[i]));
    });
}

TEST_CASE("forks and truncations at every offset continue with the bits of what is computed") {
    in_formats([](const auto& of) {
        auto cache = of.cache();
        owned_engine engine(engine_of(1), cache);
        const tokens base = text(200, 1), more = text(20, 9);
        auto one = engine.open(base);
        static_cast<void>(engine.finished(one, 200));
        for (std::size_t at = 0; at <= 200; at += at % 16 == 15 || at % 16 == 0 ? 1 : 5) {
            INFO("at " << at);
            auto fork = engine.fork(one, at);
            fork.all = joined(base, at, more);
            const rows_of_logits alone = of.cold(fork.all);
            auto cut = engine.fork(fork, fork.sequence.size());
            fork.logits.resize(fork.sequence.size());
            same_bits(engine.finished(fork, 7), alone);
            cut.all = fork.all;
            cut.logits.resize(cut.sequence.size());
            static_cast<void>(engine.finished(cut, 64));
            engine.truncate(cut, at / 2);
            cut.logits.assign(cut.sequence.size(), {});
            same_bits(engine.finished(cut, 64), alone);
            CHECK(cache.check().has_value());
        }
    });
}

TEST_CASE("what was evicted and comes back from a tier gives the bits of what is computed") {
    const testing_files::temporary_directory directory;
    int number = 0;
    in_formats([&](const auto& of) {
        const tokens first = text(500, 1), second = joined(first, 400, text(100, 5));
        const rows_of_logits alone = of.cold(first), other = of.cold(second);
        const auto write = [&](auto& cache) {
            owned_engine engine(engine_of(1), cache);
            auto one = engine.open(first);
            same_bits(engine.finished(one, 64), alone);
            REQUIRE(cache.tier().flush().has_value());
        };
        const auto read = [&](auto& cache) {
            owned_engine engine(engine_of(1), cache);
            auto next = engine.open(second);
            const std::size_t known = 400 / of.page_tokens * of.page_tokens;
            CHECK(next.sequence.size() == known);
            same_bits(engine.finished(next, 100), other);
            const kv::tier_stats stats = kv::tier_stats_of(cache);
            CHECK(stats.loaded_tokens == known);
            CHECK(stats.refused + stats.failed == 0);
            CHECK(cache.check().has_value());
        };
        auto evicting = of.cache(kv::tier::memory{});
        write(evicting);
        REQUIRE(evicting.clear_all());
        read(evicting);
        const kv::tier::lmdb<> stored{.directory = directory.path() / std::to_string(number++)};
        {
            auto ended = of.cache(stored);
            write(ended);
        }
        auto begun = of.cache(stored);
        read(begun);
    });
}
