// SPDX-License-Identifier: MIT
#include <kvcache/session/sampler.hpp>

#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("without a temperature the likeliest token is drawn, the first among equals") {
    const std::vector<float> logits = {0.5f, 2.0f, -1.0f, 2.0f};
    CHECK(kv::sampler{}.draw(logits, 0) == kv::token_id{1});
    CHECK(kv::sampler{.seed = 5}.draw(logits, 99) == kv::token_id{1});
}

TEST_CASE("a draw depends on seed, choice and place alone") {
    const std::vector<float> logits(37, 0.0f);
    const kv::sampler one{.temperature = 1.0f, .seed = 1};
    std::size_t same_seed = 0, same_choice = 0;
    for (std::uint64_t i = 0; i < 200; ++i) {
        CHECK(one.draw(logits, i) == one.draw(logits, i));
        same_seed += one.draw(logits, i) == kv::sampler{.temperature = 1.0f, .seed = 2}.draw(logits, i);
        same_choice += one.draw(logits, i) == kv::sampler{.temperature = 1.0f, .seed = 1, .choice = 1}.draw(logits, i);
    }
    CHECK(same_seed < 30);
    CHECK(same_choice < 30);
}

TEST_CASE("draws follow the softmax of the logits") {
    const std::vector<float> logits = {0.0f, 1.0f, 2.0f, -30.0f, 0.5f};
    for (const float temperature : {0.5f, 1.0f, 2.0f}) {
        const kv::sampler draw{.temperature = temperature, .seed = 3};
        std::vector<double> share(logits.size(), 0.0);
        constexpr int draws = 20000;
        for (int i = 0; i < draws; ++i)
            share[static_cast<std::size_t>(kv::index_of(draw.draw(logits, static_cast<std::uint64_t>(i))))] +=
                1.0 / draws;
        double total = 0.0;
        for (const float x : logits)
            total += std::exp(static_cast<double>(x) / static_cast<double>(temperature));
        for (std::size_t i = 0; i < logits.size(); ++i)
            CHECK(share[i] ==
                  Approx(std::exp(static_cast<double>(logits[i]) / static_cast<double>(temperature)) / total)
                      .margin(0.02));
    }
}

namespace {

std::vector<float> some_logits(std::size_t n, unsigned seed) {
    std::mt19937 dice(seed);
    std::vector<float> made(n);
    for (float& x : made)
        x = static_cast<float>(dice() % 1000) / 100.0f - 5.0f;
    return made;
}

// The set of tokens that `draw` returns.
std::set<int> said(const kv::sampler& draw, const std::vector<float>& logits, int draws = 4000) {
    std::set<int> made;
    for (int i = 0; i < draws; ++i)
        made.insert(kv::index_of(draw.draw(logits, static_cast<std::uint64_t>(i))));
    return made;
}

} // namespace

TEST_CASE("a limit that cuts nothing changes no draw") {
    const auto logits = some_logits(101, 1);
    const kv::sampler plain{.temperature = 1.0f, .seed = 4};
    for (std::uint64_t i = 0; i < 200; ++i) {
        const auto token = plain.draw(logits, i);
        CHECK(kv::sampler{.temperature = 1.0f, .seed = 4, .top_k = 101}.draw(logits, i) == token);
        CHECK(kv::sampler{.temperature = 1.0f, .seed = 4, .top_k = 1000, .min_p = 1e-30f}.draw(logits, i) == token);
        CHECK(kv::sampler{.temperature = 1.0f, .seed = 4, .bias = {{kv::token_id{3}, 0.0f}}}.draw(logits, i) == token);
        CHECK(kv::sampler{.temperature = 1.0f, .seed = 4, .frequency_penalty = 1.0f}.draw(logits, i) == token);
    }
}

TEST_CASE("limits keep the likeliest tokens and no others") {
    // Probabilities: 0.5, 0.25, 0.125, 0.0625, 0.0625.
    const float ln2 = 0.6931472f;
    const std::vector<float> logits = {-3 * ln2, 0.0f, -ln2, -3 * ln2, -2 * ln2};
    const auto with = [](std::size_t k, float p, float least) {
        return kv::sampler{.temperature = 1.0f, .top_k = k, .top_p = p, .min_p = least};
    };
    CHECK(said(with(0, 1.0f, 0.0f), logits) == std::set{0, 1, 2, 3, 4});
    CHECK(said(with(1, 1.0f, 0.0f), logits) == std::set{1});
    CHECK(said(with(3, 1.0f, 0.0f), logits) == std::set{1, 2, 4});
    CHECK(said(with(4, 1.0f, 0.0f), logits) == std::set{0, 1, 2, 4}); // ties keep the lower id
    CHECK(said(with(0, 0.4f, 0.0f), logits) == std::set{1});
    CHECK(said(with(0, 0.7f, 0.0f), logits) == std::set{1, 2});
    CHECK(said(with(0, 0.8f, 0.0f), logits) == std::set{1, 2, 4});
    CHECK(said(with(2, 0.9f, 0.0f), logits) == std::set{1, 2}); // of the remaining tokens
    CHECK(said(with(2, 0.6f, 0.0f), logits) == std::set{1});
    CHECK(said(with(0, 1.0f, 0.3f), logits) == std::set{1, 2});
    CHECK(said(with(0, 1.0f, 1.0f), logits) == std::set{1});
    CHECK(said(with(0, 1e-9f, 0.0f), logits) == std::set{1});
}

TEST_CASE(
    "the frequency and presence penalties count generated tokens, the repetition penalty also those of the prompt") {
    const std::vector<float> logits = {2.0f, 1.9f, 1.8f, -1.0f};
    kv::token_counts before(std::vector<kv::token_id>{kv::token_id{0}, kv::token_id{0}});
    before.add(kv::token_id{1});
    before.add(kv::token_id{1});
    const auto best = [&](kv::sampler draw) { return kv::index_of(draw.draw(logits, 0, before)); };
    CHECK(best({}) == 0);
    CHECK(best({.presence_penalty = 1.0f}) == 0); // the prompt does not count
    CHECK(best({.repetition_penalty = 1.2f}) == 2);
    CHECK(best({.repetition_penalty = 1.2f, .bias = {{kv::token_id{2}, -9.0f}}}) == 0);
    CHECK(best({.bias = {{kv::token_id{0}, -9.0f}}}) == 1);
    CHECK(best({.presence_penalty = 0.05f, .bias = {{kv::token_id{0}, -9.0f}}}) == 1);
    CHECK(best({.frequency_penalty = 0.06f, .bias = {{kv::token_id{0}, -9.0f}}}) == 2); // occurs twice
    const float never = -std::numeric_limits<float>::infinity();
    CHECK(best({.bias = {{kv::token_id{0}, never}, {kv::token_id{1}, never}, {kv::token_id{2}, never}}}) == 3);
    CHECK(said({.temperature = 5.0f, .bias = {{kv::token_id{0}, never}}}, logits) == std::set{1, 2, 3});
}

TEST_CASE("options out of their range are refused by name") {
    const auto field = [](const kv::sampler& draw) {
        const auto checked = draw.check(10);
        return checked ? std::string() : checked.error().field;
    };
    const float nan = std::numeric_limits<float>::quiet_NaN(), infinite = std::numeric_limits<float>::infinity();
    CHECK(field({}) == "");
    CHECK(field({.temperature = 2.0f, .top_k = 5, .top_p = 0.5f, .min_p = 0.1f}) == "");
    CHECK(field({.temperature = -1.0f}) == "temperature");
    CHECK(field({.temperature = nan}) == "temperature");
    CHECK(field({.top_p = 0.0f}) == "top_p");
    CHECK(field({.top_p = nan}) == "top_p");
    CHECK(field({.min_p = 1.5f}) == "min_p");
    CHECK(field({.repetition_penalty = 0.0f}) == "repetition_penalty");
    CHECK(field({.frequency_penalty = infinite}) == "frequency_penalty");
    CHECK(field({.presence_penalty = nan}) == "presence_penalty");
    CHECK(field({.bias = {{kv::token_id{10}, 0.0f}}}) == "logit_bias");
    CHECK(field({.bias = {{kv::token_id{9}, infinite}}}) == "logit_bias");
    CHECK(field({.bias = {{kv::token_id{9}, -infinite}}}) == "");
}
