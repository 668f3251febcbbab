// SPDX-License-Identifier: MIT
//
// Threads that run freely over one cache of layer groups: what ThreadSanitizer watches (./dev check). The rows of the
// host are plain memory, so a block that two threads use for different tokens is a race as well as a wrong row.
#include <kvcache/cache.hpp>
#include <kvcache/layer_groups.hpp>
#include <kvcache/locking/mutex.hpp>
#include <kvcache/storage/external.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cache/model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache_test;

namespace {

constexpr std::size_t workers = 4, most_blocks = 2048;
constexpr std::uint64_t poison = 0xdead;
constexpr std::size_t full_group = 0, state_group = 2;

[[nodiscard]] kv::cache_layout layout_of(std::uint32_t tokens) {
    return {tokens,
            {{.layers = 1, .kv_heads = 1, .head_dim = 8},
             {.layers = 2, .kv_heads = 1, .head_dim = 8, .window = 21},
             {.layers = 3, .state_bytes = 600},
             {.layers = 1, .alias_of = 1}}};
}

/// Blocks of fixed memory. Instead of keys and values each row holds the name of its token and all before it, and a
/// state that of its last token.
class memory_host {
public:
    explicit memory_host(kv::cache_layout layout)
        : layout_(std::move(layout)),
          rows_(layout_.groups.size(), std::vector<std::uint64_t>(most_blocks * layout_.tokens, poison)) {}

    [[nodiscard]] const kv::cache_layout& layout() const { return layout_; }
    [[nodiscard]] std::uint64_t& row(std::size_t group, std::size_t block, std::size_t row) {
        return rows_[group][block * layout_.tokens + row];
    }

    /// Another thread may be writing the rows of `from` that follow.
    bool copy(std::size_t group, std::uint32_t from, std::uint32_t to, std::size_t rows) {
        free(group, to);
        for (std::size_t i = 0; i < rows; ++i)
            row(group, to, i) = row(group, from, i);
        return true;
    }
    void free(std::size_t group, std::uint32_t block) {
        for (std::size_t i = 0; i < layout_.tokens; ++i)
            row(group, block, i) = poison;
    }

    /// Whether all that the next query of a sequence reads is that of these tokens.
    template <class Sequence>
    [[nodiscard]] bool holds(const Sequence& sequence, const past& tokens, bool state_is_live) {
        const std::size_t n = tokens.size();
        if (sequence.size() != n)
            return false;
        for (std::size_t group = 0; group < layout_.groups.size(); ++group) {
            const std::size_t keeper = layout_.groups[group].alias_of.value_or(static_cast<std::uint32_t>(group));
            const kv::layer_group& of = layout_.groups[keeper];
            const auto table = sequence.blocks(group);
            if (of.kind() == kv::group_kind::state) {
                if (n > 0 && !state_is_live && !state_holds(table, tokens))
                    return false;
                continue;
            }
            for (std::size_t at = of.first_read(n); at < n; ++at)
                if (const std::int32_t block = table[at / layout_.tokens];
                    block < 0 || row(keeper, static_cast<std::size_t>(block), at % layout_.tokens) != tokens.names[at])
                    return false;
        }
        return true;
    }
    /// Writes the rows of a lease, for tokens that end with its own.
    template <class Lease>
    [[nodiscard]] bool write(const Lease& lease, const past& tokens) {
        for (std::size_t group = 0; group < layout_.groups.size(); ++group) {
            if (!layout_.groups[group].has_rows())
                continue;
            const auto table = lease.blocks(group);
            for (std::size_t at = lease.first(); at < lease.first() + lease.rows(); ++at) {
                const std::int32_t block = table[at / layout_.tokens];
                if (block < 0)
                    return false;
                row(group, static_cast<std::size_t>(block), at % layout_.tokens) = tokens.names[at];
                if (at % 16 == 0)
                    std::this_thread::yield();
            }
        }
        return true;
    }

private:
    [[nodiscard]] bool state_holds(std::span<const std::int32_t> table, const past& tokens) {
        const std::size_t n = tokens.size();
        const std::int32_t block = n % layout_.tokens == 0 ? table[n / layout_.tokens - 1] : -1;
        return block >= 0 && row(state_group, static_cast<std::size_t>(block), 0) == tokens.names.back();
    }

    kv::cache_layout layout_;
    std::vector<std::vector<std::uint64_t>> rows_;
};

[[nodiscard]] kv::storage::external pages_of(memory_host& host) {
    return {
        .copy = [&host](kv::page_id from, kv::page_id to,
                        std::size_t rows) { return host.copy(full_group, kv::index_of(from), kv::index_of(to), rows); },
        .on_evict = [&host](kv::page_id page) { host.free(full_group, kv::index_of(page)); },
        .on_move = [](const kv::moved_entry&) {}};
}
[[nodiscard]] kv::layers::grouped groups_of(memory_host& host, bool keep) {
    return {.layout = host.layout(),
            .keep_released = keep,
            .copy = [&host](std::size_t group, std::uint32_t from, std::uint32_t to,
                            std::size_t rows) { return host.copy(group, from, to, rows); },
            .on_evict = [&host](std::size_t group, std::uint32_t block) { host.free(group, block); }};
}

/// What one thread does with a cache that others use at the same time.
template <class Cache>
class worker {
public:
    worker(memory_host& host, Cache& cache, std::uint64_t seed) : host_(host), cache_(cache), choose_(seed) {}

    /// Returns the number of wrong rows and broken promises.
    int run(int rounds, const typename Cache::sequence& shared, const past& of_shared) {
        for (int round = 0; round < rounds; ++round) {
            switch (choose_(12)) {
            case 0:
            case 1:
            case 2:
            case 3:
                acquire();
                break;
            case 4:
            case 5:
                extend();
                break;
            case 6:
                shorten();
                break;
            case 7:
                fork();
                break;
            case 8: {
                auto made = shared.fork(choose_(shared.size() + 1));
                past tokens = of_shared.first(made.size());
                const bool live_state = tokens.size() == of_shared.size();
                add(std::move(made), std::move(tokens), live_state);
                break;
            }
            case 9:
                cache_.evict(prompt().tokens);
                break;
            case 10:
                wrong_ += cache_.lookup(prompt().tokens).cached_tokens > 500;
                break;
            default:
                end();
            }
            if (live_.size() > 3)
                end();
            for (const live& one : live_)
                wrong_ += !host_.holds(one.sequence, one.tokens, one.state_is_live);
        }
        return wrong_;
    }
    [[nodiscard]] std::size_t hits() const { return hits_; }
    [[nodiscard]] std::size_t refused() const { return refused_; }

private:
    struct live {
        typename Cache::sequence sequence;
        past tokens;
        bool state_is_live = true; // the host has the state after the last token
    };

    // One of a few long beginnings, common to all threads, up to a random length, and some tokens more.
    past prompt() {
        past made;
        const auto first = static_cast<std::int32_t>(100 * choose_(3));
        for (const kv::token_id token : counted(first, choose_(120)))
            made.push(token);
        for (std::size_t more = 1 + choose_(12); more > 0; --more)
            made.push(kv::token_id{static_cast<std::int32_t>(choose_(2))});
        return made;
    }

    // Writes the rows of a lease and commits some of them. Returns whether any.
    bool compute(typename Cache::lease& lease, const past& all, past& tokens) {
        wrong_ += !host_.write(lease, all);
        const std::size_t size = host_.layout().tokens;
        for (std::size_t at = lease.first() / size * size + size; at <= all.size(); at += size)
            if (choose_(2) == 0)
                if (const auto block = lease.snapshot(state_group, at))
                    host_.row(state_group, *block, 0) = all.names[at - 1];
        if (choose_(8) == 0) {
            lease.rollback();
            return false;
        }
        const std::size_t kept = choose_(4) == 0 ? choose_(lease.rows() + 1) : lease.rows();
        lease.commit(std::span(all.tokens).subspan(tokens.size(), kept));
        tokens = all.first(tokens.size() + kept);
        return kept > 0;
    }

    void acquire() {
        const past all = prompt();
        constexpr kv::pending_prefix ways[] = {kv::pending_prefix::compute, kv::pending_prefix::refuse,
                                               kv::pending_prefix::wait};
        auto got = cache_.acquire(all.tokens, {.pending = ways[choose_(3)]});
        if (!got) {
            ++refused_;
            return;
        }
        past tokens = all.first(got->lease.first());
        hits_ += tokens.size();
        wrong_ += got->found.cached_tokens != tokens.size() || tokens.size() >= all.size();
        wrong_ += !host_.holds(got->sequence, tokens, false);
        const bool computed = compute(got->lease, all, tokens);
        add(std::move(got->sequence), std::move(tokens), computed);
    }
    void extend() {
        if (live_.empty())
            return;
        live& one = live_[choose_(live_.size())];
        past all = one.tokens;
        for (std::size_t more = 1 + choose_(20); more > 0; --more)
            all.push(kv::token_id{static_cast<std::int32_t>(choose_(2))});
        auto lease = cache_.reserve(one.sequence, all.size() - one.tokens.size());
        if (!lease) {
            ++refused_;
            return;
        }
        one.state_is_live = compute(*lease, all, one.tokens) || one.state_is_live;
    }
    void shorten() {
        if (live_.empty())
            return;
        live& one = live_[choose_(live_.size())];
        const std::size_t wanted = choose_(one.tokens.size() + 1);
        one.sequence.truncate(wanted);
        wrong_ += one.sequence.size() > wanted;
        if (one.sequence.size() < one.tokens.size()) {
            one.tokens.resize(one.sequence.size());
            one.state_is_live = false;
        }
    }
    void fork() {
        if (live_.empty())
            return;
        const live& one = live_[choose_(live_.size())];
        auto made = one.sequence.fork(choose_(one.tokens.size() + 1));
        past tokens = one.tokens.first(made.size());
        const bool live_state = one.state_is_live && tokens.size() == one.tokens.size();
        add(std::move(made), std::move(tokens), live_state);
    }
    void end() {
        if (!live_.empty())
            live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(choose_(live_.size())));
    }
    void add(typename Cache::sequence sequence, past tokens, bool state_is_live) {
        live_.push_back({std::move(sequence), std::move(tokens), state_is_live});
    }

    memory_host& host_;
    Cache& cache_;
    seeded choose_;
    std::vector<live> live_;
    int wrong_ = 0;
    std::size_t hits_ = 0, refused_ = 0;
};

struct outcome {
    std::size_t hits = 0, refused = 0;
};

// All threads over one cache of a seed's options, and one that checks it.
outcome play(std::uint64_t seed, int rounds) {
    const bool keeps = seed % 2 == 0, merges = seed / 2 % 2 == 0;
    const std::uint32_t tokens = seed / 4 % 2 == 0 ? 4 : 16;
    INFO("seed " << seed << ", pages of " << tokens << ", keep_released " << keeps << ", merge_equal_pages " << merges);
    memory_host host(layout_of(tokens));
    auto cache = kv::make_cache({.limit = {.bytes = 64 << 10}, .merge_equal_pages = merges}, kv::locking::mutex{},
                                pages_of(host), groups_of(host, keeps));
    for (const kv::layer_group_stats& of : cache.group_stats())
        REQUIRE(of.blocks <= most_blocks);

    // A sequence that all threads fork, and none changes.
    past of_shared;
    for (const kv::token_id token : counted(7, 50))
        of_shared.push(token);
    auto shared = cache.open();
    {
        auto lease = cache.reserve(shared, of_shared.size());
        REQUIRE(lease.has_value());
        REQUIRE(host.write(*lease, of_shared));
        for (std::size_t at = tokens; at <= 48; at += 2 * tokens)
            host.row(state_group, *lease->snapshot(state_group, at), 0) = of_shared.names[at - 1];
        lease->commit(of_shared.tokens);
    }

    std::atomic<int> wrong{0};
    std::atomic<std::size_t> hits{0}, refused{0};
    std::atomic<bool> over{false};
    std::vector<std::thread> threads;
    for (std::uint64_t i = 0; i < workers; ++i)
        threads.emplace_back([&, i] {
            worker<decltype(cache)> one(host, cache, workers * seed + i);
            wrong += one.run(rounds, shared, of_shared);
            hits += one.hits();
            refused += one.refused();
        });
    std::thread watcher([&] {
        while (!over) {
            wrong += !cache.check();
            std::size_t bytes = 0;
            for (const kv::layer_group_stats& of : cache.group_stats()) {
                wrong += of.in_use + of.evictable > of.blocks;
                bytes += of.bytes;
            }
            wrong += bytes > 64 << 10;
            wrong += kv::describe(cache).empty();
            std::this_thread::yield();
        }
    });
    for (std::thread& thread : threads)
        thread.join();
    over = true;
    watcher.join();

    CHECK(wrong == 0);
    CHECK(host.holds(shared, of_shared, true));
    const auto sound = cache.check();
    INFO((sound ? "" : sound.error().field + ": " + sound.error().message));
    CHECK(sound.has_value());
    { const auto ended = std::move(shared); }
    for (const kv::layer_group_stats& of : cache.group_stats())
        CHECK(of.in_use == 0);
    CHECK(cache.clear_all());
    CHECK(cache.core().pages().blocks().used() == 0);
    CHECK(cache.check().has_value());
    return {hits, refused};
}

} // namespace

TEST_CASE("threads share a cache of layer groups") {
    outcome all;
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
        const outcome one = play(seed, 150);
        all.hits += one.hits;
        all.refused += one.refused;
    }
    CHECK(all.hits > 1000);
    CHECK(all.refused > 0);
}
TEST_CASE("threads share a cache of layer groups, for long", "[.long]") {
    for (std::uint64_t seed = 0; seed < 200; ++seed)
        play(seed, 400);
}
