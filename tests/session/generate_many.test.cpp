// SPDX-License-Identifier: MIT
#include <kvcache/cache/compose.hpp>
#include <kvcache/index/chunk.hpp>
#include <kvcache/recompute/full.hpp>
#include <kvcache/session/generate_many.hpp>
#include <kvcache/testing/random_weights.hpp>

#include <cstddef>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using tokens = std::vector<kv::token_id>;
using cache = kv::cache<kv::index::chunk, kv::recompute::full>;

const kv::transformer& model() {
    static const kv::transformer made = kv::make_random_model({.hidden_size = 32,
                                                               .intermediate_size = 48,
                                                               .layers = 2,
                                                               .heads = 4,
                                                               .kv_heads = 2,
                                                               .head_dim = 16,
                                                               .vocabulary = 97,
                                                               .max_positions = 512,
                                                               .rope = {},
                                                               .tied_head = true,
                                                               .bos = {},
                                                               .eos = {}},
                                                              11);
    return made;
}

struct host {
    explicit host(std::size_t pages = 200)
        : pool(1),
          store(kv::make_cache(
              {model().shape(16), {.bytes = pages * kv::codec::f32{}.open(model().shape(16)).page_bytes()}},
              kv::index::chunk{.least = 8}, kv::recompute::full{})),
          pipeline(store, model(), pool, {.split = {.size = 32, .least = 8}, .max_batch_tokens = 64}) {}
    ~host() {
        CHECK(store.check().has_value());
        CHECK(store.stats().in_use == 0);
    }

    kv::thread_pool pool;
    cache store;
    kv::chunk_pipeline<cache, kv::transformer> pipeline;
};

tokens some(std::size_t count, unsigned seed) {
    std::mt19937 dice(seed);
    tokens made;
    for (; count > 0; --count)
        made.push_back(kv::token_id{static_cast<std::int32_t>(dice() % 97)});
    return made;
}

// Three groups with common prefixes, shuffled, of all lengths.
std::vector<tokens> prompts() {
    std::vector<tokens> made;
    for (unsigned i = 0; i < 12; ++i) {
        tokens one = some(20 + 37 * (i % 3), 100 + i % 3);
        const tokens own = some(1 + 7 * i % 19, i);
        one.insert(one.end(), own.begin(), own.end());
        made.push_back(one);
    }
    return made;
}

const kv::sampler sampling{.temperature = 0.9f, .seed = 5, .repetition_penalty = 1.2f};
const kv::stop_criteria stop{.max_tokens = 13, .stop_tokens = {kv::token_id{3}, kv::token_id{60}, kv::token_id{61}}};

struct spoken {
    tokens ids;
    bool stopped = false;
    friend bool operator==(const spoken&, const spoken&) = default;
};

std::vector<spoken> alone() {
    std::vector<spoken> made;
    for (const tokens& prompt : prompts()) {
        host fresh;
        const auto one = kv::generate(fresh.pipeline, prompt, kv::reuse_mode::baseline, sampling, stop,
                                      [](kv::token_id, std::span<const float>) { return true; });
        REQUIRE(one.has_value());
        made.push_back({one->ids, one->stopped});
    }
    return made;
}

} // namespace

TEST_CASE("prompts generated together give what each gives alone, for any batch size and page shortage") {
    const std::vector<spoken> truth = alone();
    const auto asked = prompts();
    for (const auto mode : {kv::reuse_mode::baseline, kv::reuse_mode::prefix, kv::reuse_mode::chunks})
        for (const std::size_t most : {1u, 2u, 5u, 12u})
            for (const std::size_t pages : {10u, 14u, 23u, 200u}) { // the longest prompt and its answer take eight
                host h(pages);
                const auto made = kv::generate_many(h.pipeline, asked, mode, sampling, stop, most);
                REQUIRE(made.size() == asked.size());
                for (std::size_t i = 0; i < made.size(); ++i) {
                    INFO("prompt " << i << ", " << most << " most, " << pages << " pages");
                    CHECK((made[i] ? std::string() : made[i].error().field + ": " + made[i].error().message) == "");
                    REQUIRE(made[i].has_value());
                    CHECK(spoken{made[i]->ids, made[i]->stopped} == truth[i]);
                    CHECK(made[i]->counts.prompt == asked[i].size());
                    CHECK(made[i]->first_token > 0.0);
                    CHECK(made[i]->first_token <= made[i]->total);
                }
            }
}

TEST_CASE("what prompts share is run once") {
    host h;
    const auto asked = prompts();
    const auto made = kv::generate_batch(h.pipeline, asked, kv::reuse_mode::prefix, sampling, stop);
    std::size_t prefilled = 0, own = 0;
    for (std::size_t i = 0; i < asked.size(); ++i) {
        prefilled += made[i]->counts.prefilled;
        own += asked[i].size() - (20 + 37 * (i % 3));
    }
    CHECK(prefilled == own + 20 + 57 + 94);
}

TEST_CASE("a prompt that cannot run does not block the others, and one that never fits is refused") {
    auto asked = prompts();
    asked[2].clear();
    asked[5].front() = kv::token_id{97};
    asked[7] = some(200, 1); // takes 13 pages
    host h(12);
    const auto made = kv::generate_batch(h.pipeline, asked, kv::reuse_mode::prefix, sampling, stop);
    const std::vector<spoken> truth = alone();
    for (std::size_t i = 0; i < made.size(); ++i) {
        INFO("prompt " << i);
        if (i == 2 || i == 5 || i == 7) {
            REQUIRE_FALSE(made[i].has_value());
            CHECK(made[i].error().code == (i == 7 ? kv::error_code::out_of_memory : kv::error_code::out_of_range));
        } else {
            REQUIRE(made[i].has_value());
            CHECK(made[i]->ids == truth[i].ids);
        }
    }
    CHECK(kv::generate_batch(h.pipeline, {}, kv::reuse_mode::prefix, sampling, stop).empty());
}

TEST_CASE("no token after the cacheable ones is published") {
    const tokens prompt = some(100, 9);
    for (const std::size_t cacheable : {0u, 15u, 16u, 40u, 64u, 100u}) {
        host h;
        {
            auto made = h.pipeline.prefill(prompt, kv::reuse_mode::prefix, cacheable);
            REQUIRE(made.has_value());
            auto fork = made->sequence.fork(90);
            REQUIRE(h.pipeline.exact().extend(fork, some(40, 3)).has_value());
        }
        INFO(cacheable << " of 100");
        const std::size_t known = h.store.lookup(prompt).cached_tokens;
        CHECK(known <= cacheable);
        CHECK(known >= cacheable / 16 * 16);
        tokens moved = some(5, 77);
        moved.insert(moved.end(), prompt.begin(), prompt.end());
        const auto again = h.pipeline.prefill(moved, kv::reuse_mode::chunks);
        REQUIRE(again.has_value());
        CHECK(again->counts.recomputed + again->counts.approximate <= cacheable);
        CHECK(again->counts.recomputed + again->counts.approximate == cacheable / 32 * 32);
    }
}
