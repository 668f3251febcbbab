// SPDX-License-Identifier: MIT
#include <kvcache/codec/int8.hpp>
#include <kvcache/session/beam_search.hpp>
#include <kvcache/session/generate.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "promise_fixture.hpp"
#include <catch2/catch.hpp>

using namespace promise;

namespace {

// A model with five tokens, so that all answers can be enumerated.
const kv::transformer& few_tokens() {
    static const kv::transformer model = kv::make_random_model({.hidden_size = 16,
                                                                .intermediate_size = 24,
                                                                .layers = 2,
                                                                .heads = 2,
                                                                .kv_heads = 1,
                                                                .head_dim = 8,
                                                                .vocabulary = 5,
                                                                .max_positions = 64,
                                                                .rope = {},
                                                                .tied_head = true,
                                                                .bos = {},
                                                                .eos = {}},
                                                               3);
    return model;
}

struct scored {
    tokens ids;
    double sum;
};

// Extends every answer by every token, with logits from a full prefill of its own. Finished answers go to `over`.
template <class Through>
std::vector<scored> every_step(Through& pipeline, const tokens& prompt, const std::vector<scored>& from,
                               std::size_t widest, const tokens& stop, std::vector<scored>& over) {
    std::vector<scored> all, made;
    for (const scored& each : from) {
        const auto filled = pipeline.prefill(joined(prompt, each.ids));
        REQUIRE(filled.has_value());
        const auto row = kv::row_of(filled->logits, 0);
        for (const auto& next : kv::log_probabilities(row).top(row.size())) {
            all.push_back({each.ids, each.sum + kv::log_probabilities(row).precise(next.token)});
            all.back().ids.push_back(next.token);
        }
    }
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.sum > b.sum; });
    for (scored& each : all) {
        if (made.size() == widest)
            break;
        const bool ends = std::find(stop.begin(), stop.end(), each.ids.back()) != stop.end();
        (ends ? over : made).push_back(std::move(each));
    }
    return made;
}

// Beam search by its definition: without forks and without early stopping.
template <class Through>
std::vector<kv::beam_answer> by_definition(Through& pipeline, const tokens& prompt, const kv::stop_criteria& stop,
                                           const kv::beam_options& how) {
    std::vector<scored> live{{{}, 0.0}}, over;
    for (std::size_t length = 0; length < stop.max_tokens; ++length)
        live = every_step(pipeline, prompt, live, how.beams, stop.stop_tokens, over);
    const std::size_t stopped = over.size();
    over.insert(over.end(), live.begin(), live.end());
    std::vector<kv::beam_answer> made;
    for (std::size_t i = 0; i < over.size(); ++i)
        made.push_back({over[i].ids, over[i].sum,
                        over[i].sum / std::pow(static_cast<double>(over[i].ids.size()), how.length_penalty),
                        i < stopped});
    std::stable_sort(made.begin(), made.end(), [](const auto& a, const auto& b) { return a.score > b.score; });
    made.resize(std::min(made.size(), how.best));
    return made;
}

void check_same(const std::vector<kv::beam_answer>& found, const std::vector<kv::beam_answer>& wanted) {
    REQUIRE(found.size() == wanted.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
        INFO("answer " << i);
        CHECK(found[i].ids == wanted[i].ids);
        CHECK(found[i].log_probability == wanted[i].log_probability);
        CHECK(found[i].score == wanted[i].score);
        CHECK(found[i].stopped == wanted[i].stopped);
    }
}

} // namespace

TEST_CASE("beams that are wide enough find the best of all answers") {
    const auto& model = few_tokens();
    const tokens prompt = some_tokens(model, 20, 1);
    for (const double penalty : {0.0, 1.0, 2.5, -0.5}) {
        INFO("penalty " << penalty);
        host here(model), alone(model);
        const kv::stop_criteria stop{4, {kv::token_id{2}}};
        const kv::beam_options how{.beams = 256, .best = 40, .length_penalty = penalty}; // 4^4 answers do not stop
        const auto found = kv::search_beams(here.pipeline, prompt, stop, how);
        REQUIRE(found.has_value());
        check_same(found->answers, by_definition(alone.pipeline, prompt, stop, how));
        CHECK(here.store.stats().in_use == 0);
    }
}

TEST_CASE("narrow beams find what the definition of a beam search finds") {
    const auto& model = each_model();
    const tokens prompt = some_tokens(model, 37, 2);
    for (const std::size_t beams : {std::size_t{2}, std::size_t{5}}) {
        host here(model, 16, 2), alone(model);
        // Likely stop tokens, so that answers end.
        const kv::matrix last = alone.prefill(prompt).logits.bottomRows(1);
        tokens likely;
        for (const auto& each : kv::log_probabilities(kv::row_of(last, 0)).top(6))
            likely.push_back(each.token);
        const kv::stop_criteria stop{12, {likely[3], likely[5]}};
        const kv::beam_options how{.beams = beams, .best = 4, .length_penalty = 0.7};
        const auto found = kv::search_beams(here.pipeline, prompt, stop, how);
        REQUIRE(found.has_value());
        check_same(found->answers, by_definition(alone.pipeline, prompt, stop, how));
        const auto again = kv::search_beams(here.pipeline, prompt, stop, how); // with a cached prefix
        REQUIRE(again.has_value());
        CHECK(again->reused == prompt.size() - 1);
        CHECK(again->prefilled == 1);
        check_same(again->answers, found->answers);
        CHECK(here.store.stats().in_use == 0);
    }
}

TEST_CASE("one beam is the greedy answer") {
    const auto& model = tiny_model();
    host here(model);
    const tokens prompt = some_tokens(model, 9, 3);
    const auto greedy = kv::generate(here.pipeline, prompt, kv::sampler{}, {20, {}},
                                     [](kv::token_id, std::span<const float>) { return true; });
    const auto found = kv::search_beams(here.pipeline, prompt, {20, {}}, {.beams = 1});
    REQUIRE((greedy.has_value() && found.has_value()));
    CHECK(found->answers.at(0).ids == greedy->ids);
    CHECK_FALSE(found->answers.at(0).stopped);
}

TEST_CASE("beams part inside a page that is coded") {
    const auto& model = random_model();
    const auto shape = model.shape(16);
    kv::thread_pool pool(1);
    const auto make = [&] { return kv::make_cache({shape, {.bytes = std::size_t{1} << 24}}, kv::codec::int8{}); };
    auto store = make(), other = make();
    kv::pipeline pipeline(store, model, pool, 64), alone(other, model, pool, 64);
    const tokens prompt = some_tokens(model, 30, 4);
    const kv::beam_options how{.beams = 3, .best = 3};
    const auto found = kv::search_beams(pipeline, prompt, {8, {}}, how);
    REQUIRE(found.has_value());
    check_same(found->answers, by_definition(alone, prompt, {8, {}}, how));
    CHECK(store.stats().in_use == 0);
    CHECK(store.check().has_value());
}

TEST_CASE("a search that fails keeps no page") {
    const auto& model = random_model();
    const tokens prompt = some_tokens(model, 30, 5);
    host few(model, 16, 1, 64, 5); // two for the prompt, one for each of three beams
    const auto found = kv::search_beams(few.pipeline, prompt, {30, {}}, {.beams = 6});
    REQUIRE_FALSE(found.has_value());
    CHECK(found.error().code == kv::error_code::out_of_memory);
    CHECK(few.store.stats().in_use == 0);
    CHECK(kv::search_beams(few.pipeline, {}, {4, {}}, {}).error().code == kv::error_code::out_of_range);
    CHECK(few.store.stats().in_use == 0);
}

TEST_CASE("a search ends at the model's last position, and is empty if nothing is wanted") {
    const auto& model = few_tokens();
    host here(model);
    const tokens prompt = some_tokens(model, 60, 6);
    const auto found = kv::search_beams(here.pipeline, prompt, {100, {}}, {.beams = 3, .best = 2});
    REQUIRE(found.has_value());
    for (const auto& each : found->answers)
        CHECK(each.ids.size() == 5); // 64 positions, and a token that never runs
    const auto none = kv::search_beams(here.pipeline, prompt, {0, {}}, {.beams = 3});
    REQUIRE(none.has_value());
    CHECK(none->answers.at(0).ids.empty());
}
