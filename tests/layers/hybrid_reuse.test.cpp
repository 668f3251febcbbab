// SPDX-License-Identifier: MIT
// A hit equals a miss, bit for bit: every row that an engine of hybrid layers computes after reused blocks has the
// logits of the same prompt computed alone, at once, on one thread, without a cache.
#include <kvcache/cache.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/layer_groups.hpp>
#include <kvcache/storage/external.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/model.hpp"
#include "kernel/numbers.hpp"
#include "layers/hybrid_engine.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache_test;

namespace {

using tokens = std::vector<kv::token_id>;
using cache_type = kv::cache<kv::storage::external, kv::layers::grouped, kv::eviction::lru>;

struct options {
    std::uint32_t page_tokens = 16;
    std::size_t bytes = std::size_t{1} << 20;
    bool merges = true, keeps = true;
    kv::snapshot_places places = {.every = 1};
};

/// A prompt or an answer that grows: its tokens, of which the sequence has the first, and the logits of those rows that
/// were computed here.
struct conversation {
    cache_type::sequence sequence;
    tokens all;
    hybrid::state state = {}; // after sequence.size() tokens
    std::vector<std::vector<float>> logits = {};
    std::vector<std::size_t> snapshots = {}; // where they are wanted
    std::size_t reused = 0;

    [[nodiscard]] std::size_t left() const { return all.size() - sequence.size(); }
};

/// Rows of a conversation in the next batch, of which the first `kept` are committed.
struct work {
    conversation* of = nullptr;
    std::size_t rows = 0;
    std::size_t kept = rows;
};

class hybrid_host {
public:
    hybrid_host(hybrid_engine& engine, const options& how) : engine_(engine), how_(how), cache_(opened()) {
        std::array<std::size_t, 3> blocks{};
        for (std::size_t group = 0; group < blocks.size(); ++group)
            blocks[group] = cache_.group_stats()[group].blocks;
        memory_ = std::make_unique<hybrid_memory>(how.page_tokens, blocks);
    }

    [[nodiscard]] cache_type& cache() { return cache_; }

    [[nodiscard]] conversation open(tokens prompt) {
        kv::lookup_result found = cache_.lookup(prompt);
        conversation made{cache_.open(prompt), std::move(prompt)};
        made.reused = made.sequence.size();
        REQUIRE(made.reused <= found.cached_tokens); // less by the last token, which is computed in any case
        found.cached_tokens = made.reused;
        made.snapshots = how_.places.of(found, how_.page_tokens);
        made.logits.resize(made.reused);
        load_state(made);
        return made;
    }
    /// Where each page ends.
    [[nodiscard]] std::vector<std::size_t> page_ends() const {
        std::vector<std::size_t> made;
        for (std::size_t at = how_.page_tokens; at < 1000; at += how_.page_tokens)
            made.push_back(at);
        return made;
    }

    /// Its first tokens, or fewer.
    [[nodiscard]] conversation fork(const conversation& from, std::size_t count) {
        conversation made{from.sequence.fork(count), from.all, from.state, from.logits};
        shorten(made);
        return made;
    }
    void truncate(conversation& one, std::size_t count) {
        one.sequence.truncate(count);
        shorten(one);
    }

    /// Computes rows of several conversations in one batch. Returns false if there was no room; nothing has changed.
    [[nodiscard]] bool run(std::span<const work> batch) {
        std::vector<cache_type::lease> leases;
        std::vector<hybrid_part> parts;
        std::vector<std::array<hybrid::state, 2>> states(batch.size()); // after all rows, and after those that are kept
        for (std::size_t i = 0; i < batch.size(); ++i) {
            conversation& one = *batch[i].of;
            auto lease = cache_.reserve(one.sequence, batch[i].rows);
            if (!lease)
                return false;
            const std::size_t first = lease->first();
            states[i] = {one.state, one.state};
            hybrid_part part{.tokens = std::span(one.all).subspan(first, batch[i].rows),
                             .first = first,
                             .tables = {lease->blocks(hybrid::full), lease->blocks(hybrid::windowed)},
                             .state = &states[i][0]};
            REQUIRE(lease->blocks(hybrid::alias) == part.tables[1]);
            for (const std::size_t at : one.snapshots)
                if (at > first && at <= first + batch[i].rows)
                    if (const auto block = lease->snapshot(hybrid::recurrent, at))
                        part.snapshots.emplace_back(at, &memory_->states[*block]);
            part.snapshots.emplace_back(first + batch[i].kept, &states[i][1]);
            std::stable_sort(part.snapshots.begin(), part.snapshots.end(),
                             [](const auto& a, const auto& b) { return a.first < b.first; });
            if (batch[i].kept == 0)
                std::erase_if(part.snapshots, [&](const auto& wanted) { return wanted.second == &states[i][1]; });
            parts.push_back(std::move(part));
            leases.push_back(std::move(*lease));
        }
        engine_.run(parts, *memory_);
        for (std::size_t i = 0; i < batch.size(); ++i) {
            conversation& one = *batch[i].of;
            for (std::size_t row = 0; row < batch[i].kept; ++row) {
                const auto from = parts[i].logits.begin() + static_cast<std::ptrdiff_t>(row * hybrid::vocabulary);
                one.logits.emplace_back(from, from + hybrid::vocabulary);
            }
            leases[i].commit(parts[i].tokens.first(batch[i].kept));
            one.state = states[i][1];
        }
        return true;
    }
    /// Computes all that is left of a conversation, so many rows at a time.
    void finish(conversation& one, std::size_t at_once) {
        while (one.left() > 0) {
            const work some{&one, std::min(at_once, one.left())};
            REQUIRE(run({&some, 1}));
        }
    }

private:
    [[nodiscard]] cache_type opened() {
        return kv::make_cache(
            {.limit = {.bytes = how_.bytes}, .merge_equal_pages = how_.merges},
            kv::storage::external{
                .copy = [this](kv::page_id from, kv::page_id to,
                               std::size_t rows) { return copy(0, index_of(from), index_of(to), rows); },
                .on_evict = [this](kv::page_id page) { memory_->rows[0].free(index_of(page)); },
                .on_move = [](const kv::moved_entry&) {}},
            kv::layers::grouped{.layout = hybrid::layout(how_.page_tokens),
                                .keep_released = how_.keeps,
                                .copy = [this](std::size_t group, std::uint32_t from, std::uint32_t to,
                                               std::size_t rows) { return copy(group, from, to, rows); },
                                .on_evict =
                                    [this](std::size_t group, std::uint32_t block) {
                                        if (group == hybrid::windowed)
                                            memory_->rows[1].free(block);
                                        else
                                            memory_->states[block].numbers.fill(numbers::not_a_number);
                                    }},
            kv::eviction::lru{});
    }
    bool copy(std::size_t group, std::uint32_t from, std::uint32_t to, std::size_t rows) {
        return memory_->rows[group].copy(from, to, rows);
    }
    // The state after the tokens that a sequence shares with others.
    void load_state(conversation& one) {
        one.state = {};
        if (const std::size_t n = one.sequence.size(); n > 0) {
            const std::int32_t block = one.sequence.blocks(hybrid::recurrent)[n / how_.page_tokens - 1];
            REQUIRE((n % how_.page_tokens == 0 && block >= 0));
            one.state = memory_->states[static_cast<std::size_t>(block)];
        }
    }
    // Keeps what a sequence still has.
    void shorten(conversation& one) {
        const std::size_t n = one.sequence.size(), before = one.logits.size();
        one.all.resize(n);
        one.logits.resize(n);
        one.snapshots = page_ends();
        if (n < before)
            load_state(one);
    }

    hybrid_engine& engine_;
    options how_;
    std::unique_ptr<hybrid_memory> memory_;
    cache_type cache_;
};

[[nodiscard]] hybrid_engine& engine_of(std::size_t threads) {
    static std::array<hybrid_engine, 2> engines{hybrid_engine(1), hybrid_engine(2)};
    return engines[threads - 1];
}

/// Checks all rows of a conversation that were computed.
void check(const conversation& one) {
    const std::size_t n = one.logits.size();
    REQUIRE(n == one.sequence.size());
    const std::vector<float> alone = computed_alone(engine_of(1), std::span(one.all).first(n));
    for (std::size_t row = 0; row < n; ++row)
        if (!one.logits[row].empty() &&
            !numbers::same_bits(one.logits[row],
                                std::span(alone).subspan(row * hybrid::vocabulary, hybrid::vocabulary)))
            FAIL("row " << row << " of " << n << " has other bits than alone; " << one.reused << " were reused");
}

/// The first `kept` tokens of a prompt, and others.
[[nodiscard]] tokens edited(tokens of, std::size_t kept, std::size_t more, std::uint64_t seed) {
    seeded choose(seed);
    of.resize(kept);
    for (std::size_t i = 0; i < more; ++i)
        of.push_back(kv::token_id{static_cast<std::int32_t>(choose(hybrid::vocabulary))});
    return of;
}
[[nodiscard]] tokens some(std::size_t count, std::uint64_t seed) {
    return edited({}, 0, count, seed);
}

// Conversations of one cache, at random.
class campaign {
public:
    explicit campaign(std::uint64_t seed)
        : choose_(seed),
          host_(engine_of(1 + choose_(2)),
                {.page_tokens = choose_(2) == 0 ? 16u : 64u,
                 .bytes = (192 + choose_(400)) << 10,
                 .merges = choose_(2) == 0,
                 .keeps = choose_(4) > 0,
                 .places = {.branches = choose_(2) == 0, .every = choose_(4), .doubling = choose_(2) == 0}}) {}

    /// Returns the number of tokens that were reused.
    std::size_t run(std::size_t rounds) {
        for (std::size_t round = 0; round < rounds; ++round) {
            step();
            const auto sound = host_.cache().check();
            INFO((sound ? "" : sound.error().message));
            REQUIRE(sound.has_value());
            while (all_.size() > 5)
                end();
        }
        while (!all_.empty())
            end();
        return reused_;
    }

private:
    void step() {
        switch (choose_(9)) {
        case 0:
        case 1:
            all_.push_back(host_.open(prompt()));
            reused_ += all_.back().reused;
            while (all_.back().left() > 0) {
                const work next{&all_.back(), std::min(all_.back().left(), 1 + choose_(200))};
                if (!host_.run({&next, 1}))
                    break; // there is no room
            }
            break;
        case 2:
            if (!all_.empty()) {
                conversation& one = any();
                host_.truncate(one, choose_(one.sequence.size() + 1));
            }
            break;
        case 3:
            if (!all_.empty()) {
                const conversation& one = any();
                all_.push_back(host_.fork(one, choose_(one.sequence.size() + 1)));
            }
            break;
        case 4:
            host_.cache().evict(some(400, choose_(3)));
            if (choose_(4) == 0)
                end();
            break;
        default:
            batch();
        }
    }
    void batch() {
        std::vector<work> rows;
        for (conversation& one : all_) {
            if (choose_(3) == 0)
                continue;
            if (one.left() == 0)
                one.all = edited(one.all, one.all.size(), 1 + choose_(30), choose_(1000));
            const std::size_t count = 1 + choose_(std::min<std::size_t>(one.left(), choose_(2) == 0 ? 8 : 300));
            rows.push_back({&one, count, choose_(6) == 0 ? choose_(count + 1) : count});
        }
        if (!rows.empty() && !host_.run(rows))
            end(); // there was no room
    }
    void end() {
        if (all_.empty())
            return;
        const auto which = all_.begin() + static_cast<std::ptrdiff_t>(choose_(all_.size()));
        check(*which);
        all_.erase(which);
    }
    conversation& any() { return all_[choose_(all_.size())]; }
    // The first tokens of one of a few, and some of its own.
    tokens prompt() {
        const tokens common = some(400, choose_(3));
        return edited(common, choose_(3) == 0 ? choose_(400) : 100 * (1 + choose_(4)), 1 + choose_(60), choose_(1000));
    }

    seeded choose_;
    hybrid_host host_;
    std::vector<conversation> all_;
    std::size_t reused_ = 0;
};

} // namespace

TEST_CASE("a hit of hybrid layers equals a miss, however prompts are split, for any page size and threads") {
    for (const std::uint32_t page : {16u, 64u})
        for (const std::size_t threads : {1u, 2u})
            for (const std::size_t split : {1u, 7u, 64u, 513u}) {
                INFO("pages of " << page << ", " << threads << " threads, " << split << " rows at once");
                hybrid_host host(engine_of(threads), {.page_tokens = page});
                const tokens prompt = some(520, 1);
                auto first = host.open(prompt);
                CHECK(first.reused == 0);
                host.finish(first, split);
                check(first);
                for (const std::size_t kept : {520u, 519u, 200u, 97u, 64u}) {
                    auto next = host.open(edited(prompt, kept, 40, kept));
                    CHECK(next.reused == kept / page * page);
                    host.finish(next, split);
                    check(next);
                }
                auto again = host.open(prompt);
                CHECK(again.reused == 520 / page * page);
                host.finish(again, split);
                check(again);
                CHECK(host.cache().check().has_value());
            }
}

TEST_CASE("a hit of hybrid layers equals a miss in a batch with strangers") {
    for (const std::uint32_t page : {16u, 64u})
        for (const std::size_t threads : {1u, 2u}) {
            INFO("pages of " << page << ", " << threads << " threads");
            hybrid_host host(engine_of(threads), {.page_tokens = page});
            const tokens prompt = some(500, 2);
            auto first = host.open(prompt);
            host.finish(first, 128);
            std::vector<conversation> all;
            for (const std::size_t kept : {500u, 400u, 150u, 0u, 1u})
                for (std::uint64_t twin = 0; twin < 2; ++twin) // of each two that compute the same at once
                    all.push_back(host.open(edited(prompt, kept, 30 + kept / 10, 10 + kept)));
            seeded choose(page + threads);
            while (true) {
                std::vector<work> batch;
                for (conversation& one : all)
                    if (one.left() > 0 && choose(3) > 0)
                        batch.push_back({&one, std::min(one.left(), 1 + choose(60))});
                if (!batch.empty())
                    REQUIRE(host.run(batch));
                else if (std::all_of(all.begin(), all.end(), [](const auto& one) { return one.left() == 0; }))
                    break;
            }
            for (const conversation& one : all)
                check(one);
            CHECK(host.cache().check().has_value());
        }
}

TEST_CASE("a fork of hybrid layers at any token equals a prompt computed alone") {
    for (const bool keeps : {true, false}) {
        hybrid_host host(engine_of(1), {.keeps = keeps});
        auto first = host.open(some(200, 3));
        host.finish(first, 64);
        for (std::size_t at = 0; at <= 200; at += keeps ? 1 : 8) {
            INFO("a fork after " << at << " tokens, released blocks " << (keeps ? "kept" : "freed"));
            // The tokens that it could not keep, and others.
            auto fork = host.fork(first, at);
            fork.all = edited(first.all, at, 4, at);
            if (keeps && at < 200)
                CHECK(fork.sequence.size() == at / 16 * 16);
            host.finish(fork, 9);
            check(fork);
        }
        first.all = edited(first.all, 200, 20, 4); // none of them changed what it reads
        host.finish(first, 3);
        check(first);
        CHECK(host.cache().check().has_value());
    }
}

TEST_CASE("what is truncated, or drafted in vain, leaves no bit in hybrid layers") {
    for (const bool keeps : {true, false}) {
        hybrid_host host(engine_of(1), {.keeps = keeps});
        auto one = host.open(some(250, 5));
        host.finish(one, 100);
        seeded choose(6);
        for (std::uint64_t round = 0; round < 60; ++round) {
            INFO("round " << round << ", released blocks " << (keeps ? "kept" : "freed"));
            if (choose(2) == 0) {
                const std::size_t n = one.sequence.size();
                host.truncate(one, n - std::min(n, choose(choose(4) == 0 ? n + 1 : 60)));
                one.all = edited(one.all, one.all.size(), choose(50), round);
                host.finish(one, 1 + choose(40));
            } else {
                const std::size_t rows = 1 + choose(24);
                one.snapshots = host.page_ends();
                one.all = edited(one.all, one.sequence.size(), rows, round);
                const work draft{&one, rows, choose(rows + 1)};
                REQUIRE(host.run({&draft, 1}));
                one.snapshots.clear(); // those of the draft are not found after other tokens
                one.all = edited(one.all, one.sequence.size(), choose(40), round);
                host.finish(one, 40);
            }
            check(one);
        }
        CHECK(host.cache().check().has_value());
    }
}

TEST_CASE("hybrid layers computed again after an eviction have the same bits") {
    for (const bool keeps : {true, false})
        for (const bool merges : {true, false}) {
            // Room for about 550 tokens.
            hybrid_host host(engine_of(1), {.bytes = 160 << 10, .merges = merges, .keeps = keeps});
            const tokens prompt = some(250, 7);
            std::set<std::size_t> reused;
            for (std::uint64_t round = 0; round < (keeps ? 20 : 10); ++round) {
                INFO("round " << round << ", released blocks " << (keeps ? "kept" : "freed") << ", merged " << merges);
                {
                    auto again = host.open(round % 3 > 0 ? prompt : edited(prompt, 10 * round, 20, round));
                    reused.insert(again.reused);
                    host.finish(again, 50);
                    check(again);
                    if (round % 4 == 1)
                        host.cache().evict(again.all); // none of it: it is in use
                }
                if (round % 8 == 5)
                    host.cache().evict(prompt);
                auto stranger = host.open(some(15 * round, 100 + round));
                host.finish(stranger, 16);
                check(stranger);
                REQUIRE(host.cache().check().has_value());
            }
            CHECK(reused.contains(0));
            CHECK(reused.size() > (keeps ? 5 : 1)); // of others, only what continues their last windows
        }
}

TEST_CASE("prompts about as long as a window, or as pages, are continued with the bits of a miss") {
    constexpr std::size_t of = hybrid::window;
    for (const std::uint32_t page : {16u, 64u})
        for (const bool keeps : {true, false})
            for (const std::size_t about :
                 {std::size_t{1}, std::size_t{page}, 2 * std::size_t{page}, of, of + page, 2 * of})
                for (const std::size_t n : {about - 1, about, about + 1}) {
                    INFO(n << " tokens in pages of " << page << ", released blocks " << (keeps ? "kept" : "freed"));
                    hybrid_host host(engine_of(1), {.page_tokens = page, .bytes = 256 << 10, .keeps = keeps});
                    auto first = host.open(some(n, 8));
                    host.finish(first, n + 1);
                    for (const std::size_t more : {1u, 20u}) {
                        auto longer = host.open(edited(first.all, n, more, more));
                        if (keeps) // a prompt leaves no snapshot after its last token
                            CHECK(longer.reused == (n - (n > 0 && more == 1)) / page * page);
                        host.finish(longer, 2);
                        check(longer);
                    }
                    auto same = host.open(first.all);
                    host.finish(same, 5);
                    check(same);
                    first.all = edited(first.all, n, 5, 9);
                    host.finish(first, 1);
                    check(first);
                }
}

TEST_CASE("whatever a host does, its hybrid layers compute the bits of prompts computed alone") {
    std::size_t reused = 0;
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
        INFO("seed " << seed);
        reused += campaign(seed).run(60);
    }
    CHECK(reused > 3000);
}
TEST_CASE("the same of hybrid layers, for long", "[.long]") {
    for (std::uint64_t seed = 100; seed < 400; ++seed) {
        INFO("seed " << seed);
        campaign(seed).run(120);
    }
}
