// SPDX-License-Identifier: MIT
// Models whose layers have windows, in caches of layer groups: a hit equals a miss, and both equal a cache that keeps
// all tokens of all layers.
#include <kvcache/codec/by_group.hpp>
#include <kvcache/layer_groups.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/tier/memory.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "promise_fixture.hpp"
#include <catch2/catch.hpp>

using namespace promise;

namespace {

constexpr std::size_t window = 21;

// Layers of Gemma 3's and of Gemma 2's kind: five of six with a window and a RoPE of its own, and every other with
// caps.
kv::model_config config_of(bool third) {
    kv::model_config made = small::config_of(third ? 7 : 4);
    made.architecture = third ? "gemma3" : "gemma2";
    made.norms = kv::norm_placement::both;
    made.gate = kv::gate_function::gelu;
    made.embedding_scale = 6.9282F;
    if (third) {
        made.qk_norm = kv::head_norm::each;
        made.window_rope = kv::rope_config{.theta = 100.0};
    } else {
        made.score_cap = 3.0F;
        made.logit_cap = 5.0F;
    }
    made.each_layer.resize(made.layers);
    for (std::size_t i = 0; i < made.layers; ++i)
        made.each_layer[i].window = (i + 1) % (third ? 6 : 2) == 0 ? 0 : window;
    REQUIRE(made.check());
    return made;
}

const kv::transformer& gemma(bool third) {
    static const kv::transformer second = kv::make_random_model(config_of(false), 3),
                                 latest = kv::make_random_model(config_of(true), 4);
    return third ? latest : second;
}

template <class... Policies>
auto grouped_cache(const kv::transformer& model, std::uint32_t page, std::size_t bytes, Policies... policies) {
    return kv::make_cache({.limit = {.bytes = bytes}, .id = model.id({1, 2})},
                          kv::layers::grouped{.layout = model.layout(page)}, std::move(policies)...);
}

template <class Cache>
void check(const Cache& cache) {
    const auto sound = cache.check();
    CHECK((sound ? std::string() : sound.error().message) == "");
}

template <class Cache>
auto prefill(Cache& cache, const kv::transformer& model, const tokens& prompt, std::size_t split = 64,
             std::size_t threads = 1) {
    kv::thread_pool pool(threads);
    kv::pipeline pipeline(cache, model, pool, split);
    auto made = pipeline.prefill(prompt, kv::logits_mode::all);
    REQUIRE((made ? std::string() : made.error().message) == "");
    return std::move(*made);
}

tokens first_of(const tokens& all, std::size_t n) {
    return {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(n)};
}

} // namespace

TEST_CASE("layers with windows: any split, page size and number of threads, cold and warm") {
    for (const bool third : {false, true}) {
        const kv::transformer& model = gemma(third);
        const tokens prompt = some_tokens(model, 150, 5);
        const kv::matrix want = cold(model, prompt);
        for (const std::uint32_t page : {16u, 64u})
            for (const std::size_t split : {1u, 7u, 64u, 513u}) {
                CAPTURE(third, page, split);
                auto cache = grouped_cache(model, page, 8u << 20);
                const std::size_t known = 90;
                CHECK(same_bits(prefill(cache, model, first_of(prompt, known), split).logits, first_rows(want, known)));
                const auto warm = prefill(cache, model, prompt, split, 2);
                CHECK(warm.reused > 0);
                CHECK(same_bits(warm.logits, want));
                check(cache);
            }
    }
}

TEST_CASE("layers with windows: forks, truncation, decoding and edits") {
    const kv::transformer& model = gemma(true);
    const tokens prompt = some_tokens(model, 140, 6);
    const kv::matrix want = cold(model, prompt);
    auto cache = grouped_cache(model, 16, 8u << 20);
    kv::thread_pool pool(2);
    kv::pipeline pipeline(cache, model, pool, 64);
    auto trunk = prefill(cache, model, prompt);
    for (const std::size_t at : {130u, 80u, 31u}) {
        CAPTURE(at);
        auto branch = trunk.sequence.fork(at);
        const std::size_t kept = branch.size(); // fewer where the window is gone
        CHECK(kept <= at);
        const auto rows = pipeline.extend(
            branch, tokens(prompt.begin() + static_cast<std::ptrdiff_t>(kept), prompt.end()), kv::logits_mode::all);
        REQUIRE(rows);
        CHECK(same_bits(*rows, want));
        check(cache);
    }
    trunk.sequence.truncate(100);
    kv::matrix row;
    for (std::size_t i = trunk.sequence.size(); i < prompt.size(); ++i) {
        auto one = pipeline.extend(trunk.sequence, std::span(prompt).subspan(i, 1));
        REQUIRE(one);
        row = std::move(*one);
    }
    CHECK(same_bits(row, want));

    for (const std::size_t at : {120u, 64u, 20u}) { // edits in the middle
        tokens edited = first_of(prompt, at);
        edited = joined(std::move(edited), some_tokens(model, 40, static_cast<unsigned>(at)));
        const auto made = prefill(cache, model, edited);
        CHECK(same_bits(made.logits, cold(model, edited)));
        CHECK(made.reused > 0);
    }
    check(cache);
}

TEST_CASE("layers with windows: batches, eviction and a tier") {
    const kv::transformer& model = gemma(true);
    std::vector<tokens> prompts;
    std::vector<kv::matrix> want;
    for (unsigned seed = 0; seed < 4; ++seed) {
        prompts.push_back(some_tokens(model, 100 + 13 * seed, 20 + seed));
        want.push_back(cold(model, prompts.back()));
    }
    auto cache = grouped_cache(model, 16, 400u << 10, kv::tier::memory<>{.bytes = 8u << 20});
    std::size_t reused = 0;
    for (int round = 0; round < 3; ++round)
        for (std::size_t i = 0; i < prompts.size(); ++i) {
            CAPTURE(round, i);
            const auto made = prefill(cache, model, prompts[i]);
            reused += made.reused;
            CHECK(same_bits(made.logits, want[i]));
            check(cache);
        }
    CHECK(reused > 0);
    CHECK(kv::tier_stats_of(cache).loaded_tokens > 0);

    auto shared = grouped_cache(model, 16, 8u << 20);
    kv::thread_pool pool(2);
    kv::pipeline pipeline(shared, model, pool, 64);
    std::vector<decltype(shared)::sequence> sequences;
    std::vector<kv::batch_entry<decltype(shared)>> batch;
    for (std::size_t i = 0; i < prompts.size(); ++i)
        sequences.push_back(shared.open());
    for (std::size_t i = 0; i < prompts.size(); ++i)
        batch.push_back({&sequences[i], prompts[i], kv::logits_mode::all});
    kv::matrix all;
    REQUIRE(pipeline.extend(batch, all));
    Eigen::Index row = 0;
    for (const kv::matrix& one : want) {
        CHECK(same_bits(all.middleRows(row, one.rows()), one));
        row += one.rows();
    }
    check(shared);
}

TEST_CASE("layers with windows take less memory than a cache of all tokens") {
    const kv::transformer& model = gemma(true);
    const tokens prompt = some_tokens(model, 800, 9);
    auto cache = grouped_cache(model, 16, 16u << 20);
    const auto made = prefill(cache, model, prompt);
    CHECK(same_bits(made.logits, cold(model, prompt)));
    const auto groups = cache.group_stats();
    REQUIRE(groups.size() == 2);
    CHECK(groups[0].in_use <= (window + 16 + 16 - 1) / 16 + 1); // layers with a window, the first
    CHECK(groups[1].in_use == 50);
}

TEST_CASE("layers with windows: full layers in int8 and windows in float32") {
    const kv::transformer& model = gemma(true);
    const tokens prompt = some_tokens(model, 130, 10);
    const kv::codec::by_group codec{kv::codec::int8{}, kv::codec::f32{}};
    auto alone = grouped_cache(model, 16, 8u << 20, codec), cache = grouped_cache(model, 16, 8u << 20, codec);
    const kv::matrix want = prefill(alone, model, prompt).logits;
    (void)prefill(cache, model, first_of(prompt, 97), 7);
    const auto warm = prefill(cache, model, prompt, 13, 2);
    CHECK(warm.reused > 0);
    CHECK(same_bits(warm.logits, want));
    check(cache);
}
