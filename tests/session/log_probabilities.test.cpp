// SPDX-License-Identifier: MIT
#include <kvcache/session/log_probabilities.hpp>

#include <cmath>
#include <random>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("log probabilities agree with the definition in double precision") {
    std::mt19937 dice(3);
    for (const std::size_t size : {1u, 2u, 15u, 16u, 17u, 1000u}) {
        std::vector<float> logits(size);
        for (float& x : logits)
            x = static_cast<float>(dice() % 4000) / 100.0f - 20.0f;
        double total = 0.0;
        for (const float x : logits)
            total += std::exp(static_cast<double>(x));
        const kv::log_probabilities of(logits);
        for (std::size_t i = 0; i < size; ++i)
            CHECK(static_cast<double>(of.of(kv::token_id{static_cast<std::int32_t>(i)})) ==
                  Approx(static_cast<double>(logits[i]) - std::log(total)).margin(1e-5));
    }
}

TEST_CASE("our logarithm is the logarithm") {
    for (double x = 1e-3; x < 1e6; x *= 1.0137)
        CHECK(kv::detail::logarithm(x) == Approx(std::log(x)).epsilon(1e-14).margin(1e-15));
    CHECK(kv::detail::logarithm(1.0) == 0.0);
}

TEST_CASE("the likeliest come in order, of equals the first, and no more than there are") {
    const std::vector<float> logits = {1.0f, 3.0f, 2.0f, 3.0f};
    const kv::log_probabilities of(logits);
    const auto top = of.top(3);
    REQUIRE(top.size() == 3);
    CHECK(top[0].token == kv::token_id{1});
    CHECK(top[1].token == kv::token_id{3});
    CHECK(top[2].token == kv::token_id{2});
    CHECK(top[2].log_probability == of.of(kv::token_id{2}));
    CHECK(of.top(9).size() == 4);
    CHECK(of.top(0).empty());
}
