// SPDX-License-Identifier: MIT
#include <kvcache/testing/reference_attention.hpp>

#include <cmath>
#include <cstddef>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("the oracle gives what a hand computes") {
    const kv::attention_shape shape{.heads = 2, .kv_heads = 1, .head_dim = 2, .scale = 0.5f, .rotation = nullptr};
    const std::vector<float> queries = {2, 0, 0, 4}; // one query at position 1
    const std::vector<float> keys = {1, 0, 0, 1}, values = {1, 10, 3, 30};
    const auto out = kv::reference_attention(shape, {queries, keys, values, 1});
    REQUIRE(out.size() == 4);
    const double first = std::exp(1.0) / (std::exp(1.0) + 1.0); // scores 1 and 0
    CHECK(out[0] == Approx(first * 1 + (1 - first) * 3));
    CHECK(out[1] == Approx(first * 10 + (1 - first) * 30));
    const double second = std::exp(2.0) / (std::exp(2.0) + 1.0); // scores 0 and 2
    CHECK(out[2] == Approx((1 - second) * 1 + second * 3));
    CHECK(out[3] == Approx((1 - second) * 10 + second * 30));
}

TEST_CASE("the oracle is causal and reads the head of the group") {
    const kv::attention_shape shape{.heads = 4, .kv_heads = 2, .head_dim = 2, .scale = 1.0f, .rotation = nullptr};
    const std::vector<float> queries(3 * 8, 0.0f), keys(3 * 4, 1.0f); // equal weights
    const std::vector<float> values = {1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6};
    const auto out = kv::reference_attention(shape, {queries, keys, values, 0});
    for (std::size_t row = 0; row < 3; ++row)
        for (std::size_t head = 0; head < 4; ++head)
            CHECK(out[row * 8 + head * 2] == Approx(static_cast<double>(1 + head / 2 + row)));
}

TEST_CASE("the oracle rotates by positions, so that only distances count") {
    const kv::rope rope(kv::rope::standard_frequencies(4, 100.0));
    const kv::attention_shape shape{.heads = 1, .kv_heads = 1, .head_dim = 4, .scale = 1.0f, .rotation = &rope};
    const std::vector<float> query = {1, 2, 3, 4}; // at position 1
    const std::vector<float> keys = {1, 0, 2, 0, 0, 1, 0, 1}, values = {1, 2, 3, 4, 5, 6, 7, 8};
    const auto out = kv::reference_attention(shape, {query, keys, values, 1});
    double scores[2];
    for (int t = 0; t < 2; ++t) {
        scores[t] = 0;
        for (std::size_t i = 0; i < 2; ++i) {
            const double angle = (1 - t) * rope.frequencies()[i]; // the distance
            const double x = static_cast<double>(query[i]), y = static_cast<double>(query[i + 2]);
            const double turned_x = x * std::cos(angle) - y * std::sin(angle);
            const double turned_y = y * std::cos(angle) + x * std::sin(angle);
            const std::size_t at = static_cast<std::size_t>(t) * 4 + i;
            scores[t] += turned_x * static_cast<double>(keys[at]) + turned_y * static_cast<double>(keys[at + 2]);
        }
    }
    const double weight = 1.0 / (1.0 + std::exp(scores[1] - scores[0]));
    for (std::size_t d = 0; d < 4; ++d)
        CHECK(out[d] == Approx(weight * static_cast<double>(1 + d) + (1 - weight) * static_cast<double>(5 + d)));
}

TEST_CASE("the oracle refuses keys that end before the last row") {
    const kv::attention_shape shape{.heads = 1, .kv_heads = 1, .head_dim = 2, .scale = 1.0f, .rotation = nullptr};
    const std::vector<float> two(2), four(4);
    CHECK_THROWS_AS(kv::reference_attention(shape, {four, two, two, 0}), kv::contract_violation);
    CHECK_THROWS_AS(kv::reference_attention(shape, {two, two, two, 1}), kv::contract_violation);
}
