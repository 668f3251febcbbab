// SPDX-License-Identifier: MIT
// Chunks over layer groups: what is spliced in has the bits that it has where every layer keeps all rows.
#include <kvcache/index/chunk.hpp>
#include <kvcache/layer_groups.hpp>
#include <kvcache/recompute/all.hpp>
#include <kvcache/session/chunk_pipeline.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "recurrent_fixture.hpp"
#include "session/chunk_prompts.hpp"
#include <catch2/catch.hpp>

using namespace recurrent;

namespace {

using small::joined;
using small::some;

// As Gemma 3: windows of 21 tokens with a RoPE of their own in three of four layers.
const kv::transformer& windowed() {
    static const kv::transformer made = [] {
        kv::model_config config = small::config_of(4);
        config.each_layer.resize(4);
        for (const std::size_t layer : {0u, 1u, 3u})
            config.each_layer[layer].window = 21;
        config.window_rope = config.rope;
        config.window_rope->theta = 500.0;
        REQUIRE(config.check());
        return kv::make_random_model(config, 11);
    }();
    return made;
}

template <class Cache>
struct chunk_host {
    chunk_host(Cache of, std::size_t rows, std::size_t threads, const kv::transformer& model = windowed())
        : pool(threads),
          store(std::move(of)),
          pipeline(store, model, pool, {.split = {.size = 48, .least = 8}, .max_batch_tokens = rows}) {}
    ~chunk_host() { check(store); }

    kv::spliced_prompt<Cache> prefill(const tokens& prompt) {
        auto made = pipeline.prefill(prompt, kv::reuse_mode::chunks);
        REQUIRE((made ? std::string() : made.error().message) == "");
        return std::move(*made);
    }
    // The logits after each token of an answer.
    std::vector<float> decode(kv::spliced_prompt<Cache>& after, const tokens& answer) {
        std::vector<float> made;
        for (const kv::token_id token : answer) {
            auto row = pipeline.exact().extend(after.sequence, std::vector{token}, kv::logits_mode::all);
            REQUIRE((row ? std::string() : row.error().message) == "");
            made.insert(made.end(), row->data(), row->data() + row->size());
        }
        return made;
    }

    kv::thread_pool pool;
    Cache store;
    kv::chunk_pipeline<Cache, kv::transformer> pipeline;
};

constexpr kv::index::chunk chunks{.least = 8};

template <class... Policies>
auto uniform(Policies... policies) {
    return kv::make_cache({.shape = windowed().shape(16), .limit = {.bytes = 64u << 20}, .id = windowed().id({1, 2})},
                          chunks, std::move(policies)...);
}
template <class... Policies>
auto groups(std::size_t bytes, Policies... policies) {
    return cache_of(windowed(), 16, bytes, chunks, std::move(policies)...);
}

bool same(const kv::matrix& a, const kv::matrix& b) {
    return a.size() == b.size() && a.size() > 0 &&
           std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size()) * sizeof(float)) == 0;
}

const tokens a = some(45, 1), b = some(33, 2), c = some(48, 3), question = some(9, 4), gap = some(7, 5);

// Prompts of these parts in any order, each with an answer, in both caches.
template <class... Policies>
void compare(std::size_t rows, std::size_t threads, unsigned seed, Policies... policies) {
    std::mt19937 dice(seed);
    chunk_host all(uniform(policies...), rows, threads);
    chunk_host few(groups(64u << 20, policies...), rows, threads);
    const std::vector<tokens> parts{a, b, c, gap, question, some(20, 31), some(64, 32)};
    std::size_t moved = 0;
    for (int round = 0; round < 12; ++round) {
        tokens prompt;
        for (std::size_t n = 1 + dice() % 5; n > 0; --n)
            prompt = joined({prompt, parts[dice() % parts.size()]});
        INFO("seed " << seed << ", round " << round << ", " << prompt.size() << " tokens");
        auto one = all.prefill(prompt);
        auto other = few.prefill(prompt);
        CHECK(one.spans == other.spans);
        CHECK(one.counts.approximate == other.counts.approximate);
        CHECK(one.counts.layer_rows == other.counts.layer_rows);
        REQUIRE(same(one.logits, other.logits));
        moved += other.counts.approximate;
        const tokens answer = some(1 + dice() % 30, 70 + static_cast<unsigned>(round));
        REQUIRE(all.decode(one, answer) == few.decode(other, answer));
        // What is left after a truncation, and of a fork, goes on alike: all of it, or what the windows allow.
        const std::size_t kept = dice() % (prompt.size() + 1);
        kv::spliced_prompt<decltype(few.store)> left{other.sequence.fork(other.sequence.size()), {}};
        other.sequence.truncate(kept);
        left.sequence.truncate(kept);
        CHECK(left.sequence.size() == other.sequence.size());
        CHECK(left.sequence.size() <= kept);
        one.sequence.truncate(other.sequence.size());
        const auto expected = all.decode(one, answer);
        REQUIRE(few.decode(other, answer) == expected);
        REQUIRE(few.decode(left, answer) == expected);
        check(few.store);
    }
    CHECK(moved > 0);
}

} // namespace

TEST_CASE("chunks over windows have the bits that they have where all layers keep all rows") {
    for (const unsigned seed : {1u, 2u, 3u, 4u}) {
        compare(64, 1, seed, kv::recompute::none{});
        compare(7, 2, seed, small::every_other<0>{});
        compare(64, 1, seed, kv::recompute::chunk_head{4});
        compare(64, 1, seed, kv::recompute::blend{});
    }
}

TEST_CASE("spliced over windows, a prompt has the same bits however it is split, on any threads") {
    const tokens prompt = joined({gap, b, c, gap, a, question}), answer = some(40, 9);
    kv::matrix logits;
    std::vector<float> answered;
    for (const std::size_t rows : {64u, 1u, 7u, 33u}) {
        chunk_host few(groups(64u << 20, kv::recompute::chunk_head{4}), rows, rows % 2 + 1);
        for (const tokens& one : {a, b, c})
            REQUIRE(few.pipeline.warm(one, {}).has_value());
        auto made = few.prefill(prompt);
        CHECK(made.counts.approximate > 60);
        const auto said = few.decode(made, answer);
        if (rows == 64) {
            logits = made.logits;
            answered = said;
        }
        CHECK(same(made.logits, logits));
        CHECK(said == answered);
    }
}

TEST_CASE("tokens are judged in the heads of their layer, where layers have heads of several sizes") {
    const kv::transformer& model = recurrent_model(4); // its layers that are compared have windows, and smaller heads
    const auto known = [&](tokens words) {             // of its vocabulary
        for (kv::token_id& word : words)
            word = kv::token_id{kv::index_of(word) % 90};
        return words;
    };
    const tokens prompt = known(joined({gap, b, c, gap, a, question}));
    kv::matrix logits;
    for (const std::size_t rows : {64u, 7u}) {
        for (const std::size_t layer : {1u, 2u}) {
            const kv::recompute::blend again{.fraction = 0.3, .layer = layer};
            chunk_host few(cache_of(model, 16, 64u << 20, chunks, again), rows, 1, model);
            for (const tokens& one : {a, b, c})
                REQUIRE(few.pipeline.warm(known(one), {}).has_value());
            auto made = few.prefill(prompt);
            CHECK(made.counts.recomputed > 20);
            CHECK(made.counts.approximate > 40);
            if (layer == 1 && rows == 64)
                logits = made.logits;
            CHECK((layer != 1 || same(made.logits, logits)));
        }
    }
}

TEST_CASE("where memory is short, chunks over windows lose no block, and are found while all groups have them") {
    for (const unsigned seed : {21u, 22u, 23u}) {
        INFO("seed " << seed);
        std::mt19937 dice(seed);
        chunk_host few(groups(windowed().layout(16).bytes(700, 4), small::every_other<0>{}), 32, 1);
        const std::vector<tokens> parts{a, b, c, gap, question, some(20, 31), some(64, 32), some(90, 33)};
        std::vector<kv::spliced_prompt<decltype(few.store)>> alive;
        std::size_t refused = 0, moved = 0;
        for (int round = 0; round < 150; ++round) {
            tokens prompt;
            for (std::size_t n = 1 + dice() % 5; n > 0; --n)
                prompt = joined({prompt, parts[dice() % parts.size()]});
            prompt.resize(1 + dice() % prompt.size());
            auto made = few.pipeline.prefill(prompt, dice() % 4 == 0 ? kv::reuse_mode::prefix : kv::reuse_mode::chunks);
            if (made) {
                moved += made->counts.approximate;
                alive.push_back(std::move(*made));
            } else {
                REQUIRE(made.error().code == kv::error_code::out_of_memory);
                ++refused;
            }
            if (!alive.empty() && dice() % 3 == 0) {
                auto& one = alive[dice() % alive.size()].sequence;
                one.truncate(dice() % (one.size() + 1));
            }
            if (alive.size() > 3 || (!made && !alive.empty()))
                alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(dice() % alive.size()));
            const auto sound = few.store.check();
            INFO((sound ? std::string() : sound.error().field + ": " + sound.error().message));
            REQUIRE(sound.has_value());
        }
        CHECK(refused > 0);
        CHECK(moved > 0);
    }
}

TEST_CASE("a chunk whose windows were freed is not registered, and none where a layer is recurrent") {
    auto drops = kv::make_cache({.limit = {.bytes = 64u << 20}, .id = windowed().id({1, 2})},
                                kv::layers::grouped{.layout = windowed().layout(16), .keep_released = false}, chunks);
    kv::thread_pool pool(1);
    kv::pipeline exact(drops, windowed(), pool, 64);
    const tokens prompt = joined({a, b, c});
    auto made = exact.prefill(prompt);
    REQUIRE(made.has_value());
    kv::chunk_reuse parts(drops);
    CHECK(parts.supported().has_value());
    CHECK(parts.add(made->sequence, 0, 45) == 0);
    CHECK(parts.add(made->sequence, 110, 16) == 16); // in the window of the next query

    auto states = cache_of(recurrent_model(3), 16, 64u << 20, chunks);
    kv::chunk_pipeline recurrent(states, recurrent_model(3), pool, {.split = {.size = 48, .least = 8}});
    for (const auto& refused : {recurrent.prefill(b, kv::reuse_mode::chunks).error(), recurrent.warm(b, {}).error()}) {
        CHECK(refused.code == kv::error_code::unsupported);
        CHECK(refused.field == "groups");
        CHECK(refused.message.find("recurrent") != std::string::npos);
    }
    auto prefix = recurrent.prefill(joined({b, c}), kv::reuse_mode::prefix);
    REQUIRE(prefix.has_value());
    CHECK(kv::chunk_reuse(states).add(prefix->sequence, 0, 33) == 0);
    check(states);
}
