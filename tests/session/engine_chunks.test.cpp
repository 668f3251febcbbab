// SPDX-License-Identifier: MIT
// Chunks in an engine's batches.
#include <kvcache/cache/compose.hpp>
#include <kvcache/codec/int8.hpp>
#include <kvcache/index/chunk.hpp>
#include <kvcache/recompute/chunk_head.hpp>
#include <kvcache/session/chunk_generate.hpp>
#include <kvcache/session/chunk_pipeline.hpp>
#include <kvcache/session/engine.hpp>

#include <algorithm>
#include <cstddef>
#include <map>
#include <random>
#include <span>
#include <type_traits>
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

const tokens a = some(48, 1), b = some(33, 2), c = some(64, 3), question = some(9, 4), gap = some(7, 5);
const kv::recompute::chunk_head head{.rows = 4, .page_aligned = false};

template <class Codec>
struct host {
    using cache = kv::cache<kv::index::chunk, kv::any_recompute, Codec>;

    explicit host(std::size_t rows = 64, std::size_t pages = 300, kv::any_recompute policy = head)
        : recompute(policy),
          store(kv::make_cache({small::model().shape(16), {.pages = pages}}, kv::index::chunk{.least = 8},
                               kv::any_recompute(policy), Codec{})),
          chunks(store, small::model(), pool, {.split = {.size = 64, .least = 8}, .store = false}),
          plain(store, small::model(), pool, rows),
          engine(store, small::model(), plain, {.max_batch_tokens = rows}) {
        for (const tokens& one : {a, b, c})
            REQUIRE(chunks.warm(one, {}).has_value());
    }
    ~host() { CHECK(store.check().has_value()); }

    void ask(int name, const tokens& prompt, kv::reuse_mode mode, std::size_t choices = 1) {
        kv::engine_request<cache> request{
            .prompt = prompt, .mode = mode, .stop = {.max_tokens = 12}, .choices = choices};
        if (mode == kv::reuse_mode::chunks)
            request.recompute = recompute;
        request.on_finish = [this, name](kv::engine_outcome<cache>&& end) {
            for (auto& answer : end.answers)
                if (answer.sequence) {
                    exact[name] = answer.sequence->exact();
                    size[name] = answer.sequence->size();
                    answer.sequence.reset(); // its pages are for the others
                }
            ended.emplace(name, std::move(end));
        };
        REQUIRE(engine.submit(std::move(request)).has_value());
    }
    void run() {
        while (engine.step({})) {
        }
    }

    kv::thread_pool pool;
    kv::any_recompute recompute;
    cache store;
    kv::chunk_pipeline<cache, kv::transformer> chunks;
    kv::pipeline<cache, kv::transformer> plain;
    kv::engine<cache, kv::transformer> engine;
    std::map<int, kv::engine_outcome<cache>> ended;
    std::map<int, std::size_t> exact, size; // of the sequences of answers
};

using codecs = std::tuple<kv::codec::f32, kv::codec::int8>;

} // namespace

TEMPLATE_LIST_TEST_CASE("an engine places chunks as a chunk pipeline does, however its steps divide them", "", codecs) {
    const std::vector<tokens> prompts{joined({gap, a, c, gap, b, question}), joined({c, question}),
                                      joined({gap, b, a, c, gap}), joined({a, b, c, question, some(100, 9)}),
                                      joined({question, gap})};
    const auto [name, rows] = GENERATE(table<std::string, std::size_t>({{"head:4", 2},
                                                                        {"head:4", 5},
                                                                        {"head:4", 256},
                                                                        {"blend:20", 64},
                                                                        {"blend:20", 3},
                                                                        {"gradual:10", 64},
                                                                        {"none", 64}}));
    const auto policy = *kv::any_recompute::named(name);
    host<TestType> h(rows, 300, policy);
    for (std::size_t i = 0; i < prompts.size(); ++i)
        h.ask(static_cast<int>(i), prompts[i], kv::reuse_mode::chunks, i == 0 ? 3 : 1);
    h.run();
    for (std::size_t i = 0; i < prompts.size(); ++i) {
        host<TestType> alone(rows, 300, policy);
        const auto expected =
            kv::generate(alone.chunks, prompts[i], kv::reuse_mode::chunks, kv::sampler{}, {.max_tokens = 12},
                         [](kv::token_id, std::span<const float>) { return true; });
        REQUIRE(expected.has_value());
        const auto& got = h.ended.at(static_cast<int>(i));
        INFO(name << ", rows " << rows << ", prompt " << i);
        CHECK_FALSE(got.failure);
        for (const auto& answer : got.answers)
            CHECK(answer.ids == expected->ids);
        CHECK(got.approximate == expected->counts.approximate);
        CHECK(got.recomputed == expected->counts.recomputed);
        // Together they share prefixes that are not there for one alone.
        CHECK(got.reused >= expected->counts.exact);
        CHECK(got.reused + got.prefilled == expected->counts.exact + expected->counts.prefilled);
        CHECK(h.exact.at(static_cast<int>(i)) == expected->prompt.sequence.exact());
    }
    CHECK(h.engine.stats().approximate > 0);
}

TEMPLATE_LIST_TEST_CASE("chunk requests change no bit of exact ones in the same batches", "", codecs) {
    const unsigned seed = GENERATE(1u, 2u, 3u);
    INFO("seed " << seed);
    std::mt19937 dice(seed);
    const std::vector<tokens> parts{a, b, c, gap, question, some(20, 31), some(64, 32)};
    const std::size_t few = std::is_same_v<TestType, kv::codec::f32> ? 26 : 60;
    host<TestType> h(24, seed == 3 ? few : 300); // seed 3: pages run out, requests are preempted
    std::vector<std::pair<tokens, kv::reuse_mode>> asked;
    for (int i = 0; i < 16; ++i) {
        tokens prompt;
        for (std::size_t n = 1 + dice() % 4; n > 0; --n)
            prompt = joined({prompt, parts[dice() % parts.size()]});
        asked.emplace_back(prompt, static_cast<kv::reuse_mode>(dice() % 3));
        h.ask(i, prompt, asked.back().second, 1 + dice() % 2);
        for (std::size_t steps = dice() % 4; steps > 0; --steps)
            h.engine.step({});
        REQUIRE(h.store.check().has_value());
    }
    h.run();
    std::size_t approximate = 0;
    for (int i = 0; i < 16; ++i) {
        const auto& [prompt, mode] = asked[static_cast<std::size_t>(i)];
        const auto& got = h.ended.at(i);
        INFO((got.failure ? got.failure->field + ": " + got.failure->message : ""));
        REQUIRE_FALSE(got.failure);
        approximate += got.approximate;
        if (got.approximate > 0) {
            CHECK(mode == kv::reuse_mode::chunks);
            continue;
        }
        host<TestType> alone;
        const auto expected =
            kv::generate(alone.chunks, prompt, kv::reuse_mode::baseline, kv::sampler{}, {.max_tokens = 12},
                         [](kv::token_id, std::span<const float>) { return true; });
        for (const auto& answer : got.answers)
            CHECK(answer.ids == expected->ids);
        CHECK(h.exact.at(i) == h.size.at(i));
        CHECK((mode != kv::reuse_mode::baseline || got.reused == 0));
    }
    CHECK((approximate > 0 || seed == 3)); // where pages are short, chunks are evicted
    CHECK((h.engine.stats().preempted > 0) == (seed == 3));
    CHECK(h.store.stats().in_use == 0);
}

TEST_CASE("a request that runs alone is computed where its chunks leave it too few pages") {
    const tokens prompt = joined({a, b, c, a, question});
    const auto answer = [&](std::size_t pages, kv::reuse_mode mode) {
        host<kv::codec::f32> h(64, pages);
        h.ask(0, prompt, mode);
        h.run();
        INFO(pages << " pages");
        REQUIRE_FALSE(h.ended.at(0).failure);
        return std::pair(h.ended.at(0).answers.front().ids, h.ended.at(0).approximate);
    };
    const tokens computed = answer(300, kv::reuse_mode::prefix).first;
    for (std::size_t pages = 14; pages < 30; ++pages) { // 13 for prompt and answer, and up to 10 of the chunks
        const auto [ids, approximate] = answer(pages, kv::reuse_mode::chunks);
        CHECK(ids.size() == 12);
        if (approximate == 0)
            CHECK(ids == computed);
    }
}

TEST_CASE("a policy that compares the second layer is refused for a model of one layer") {
    const kv::transformer model = kv::make_random_model(small::config_of(1), 7);
    kv::thread_pool pool;
    auto store = kv::make_cache({model.shape(16), {.pages = 10}}, kv::index::chunk{.least = 8});
    kv::pipeline plain(store, model, pool);
    kv::engine engine(store, model, plain);
    for (const char* name : {"blend:20", "gradual"}) {
        const auto refused =
            engine.submit({.prompt = a, .mode = kv::reuse_mode::chunks, .recompute = *kv::any_recompute::named(name)});
        REQUIRE_FALSE(refused.has_value());
        CHECK(refused.error().code == kv::error_code::unsupported);
        CHECK(refused.error().field == "recompute");
    }
    CHECK(engine.submit({.prompt = a, .mode = kv::reuse_mode::chunks, .recompute = head}).has_value());
    engine.close();
}

TEST_CASE("chunks are refused by an engine whose cache does not know them") {
    kv::thread_pool pool;
    auto store = kv::make_cache({small::model().shape(16), {.pages = 10}});
    kv::pipeline plain(store, small::model(), pool);
    kv::engine engine(store, small::model(), plain);
    const auto refused = engine.submit({.prompt = a, .mode = kv::reuse_mode::chunks});
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == kv::error_code::unsupported);
    CHECK(refused.error().field == "index");
}
