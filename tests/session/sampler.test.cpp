// SPDX-License-Identifier: MIT
#include <kvcache/session/sampler.hpp>

#include <cmath>
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
