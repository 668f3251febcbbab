// SPDX-License-Identifier: MIT
#include <kvcache/testing/random_weights.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

kv::model_config small() {
    kv::model_config config{.hidden_size = 48,
                            .intermediate_size = 80,
                            .layers = 2,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 12,
                            .vocabulary = 300};
    config.qkv_bias = true;
    config.qk_norm = kv::head_norm::each;
    return config;
}

std::vector<float> numbers_of(const kv::tensor_view& view) {
    std::vector<float> numbers(view.size());
    view.read(0, numbers);
    return numbers;
}

double deviation(const std::vector<float>& numbers, double mean) {
    double squares = 0.0;
    for (const float x : numbers)
        squares += (static_cast<double>(x) - mean) * (static_cast<double>(x) - mean);
    return std::sqrt(squares / static_cast<double>(numbers.size()));
}

} // namespace

TEST_CASE("random weights are complete: every weight of the configuration, in its shape") {
    for (const bool tied : {false, true}) {
        auto config = small();
        config.tied_head = tied;
        const kv::random_weights weights(config, 1, kv::dtype::f32);
        for (const auto& [name, shape, heads] : kv::weights_of(config)) {
            const auto view =
                shape.size() == 1 ? weights.tensor(name, {shape[0]}) : weights.tensor(name, {shape[0], shape[1]});
            INFO(name);
            REQUIRE(view);
            CHECK(view->shape == shape);
        }
        CHECK(weights.tensor("lm_head.weight", {300, 48}).has_value() != tied);
    }
}

TEST_CASE("random weights name what is missing or of another shape") {
    const kv::random_weights weights(small(), 1, kv::dtype::f32);
    const auto missing = weights.tensor("model.layers.2.self_attn.q_proj.weight", {48, 48});
    REQUIRE_FALSE(missing);
    CHECK(missing.error().code == kv::error_code::not_found);
    CHECK(missing.error().field == "model.layers.2.self_attn.q_proj.weight");
    const auto other = weights.tensor("model.norm.weight", {49});
    REQUIRE_FALSE(other);
    CHECK(other.error().code == kv::error_code::mismatched);
}

TEST_CASE("random weights are the same numbers on every build") {
    const kv::random_weights weights(small(), 1, kv::dtype::f32), again(small(), 1, kv::dtype::f32);
    const auto q = numbers_of(*weights.tensor("model.layers.0.self_attn.q_proj.weight", {48, 48}));
    CHECK(q == numbers_of(*again.tensor("model.layers.0.self_attn.q_proj.weight", {48, 48})));
    CHECK(q[0] == 0x1.5f6cp-3f);
    CHECK(q[1] == 0x1.d7b4p-3f);
    CHECK(numbers_of(*weights.tensor("model.norm.weight", {48}))[7] == 0x1.dceap-1f);
}

TEST_CASE("another seed, layer or name gives other weights") {
    const kv::random_weights one(small(), 1, kv::dtype::f32), two(small(), 2, kv::dtype::f32);
    const auto q = numbers_of(*one.tensor("model.layers.0.self_attn.q_proj.weight", {48, 48}));
    CHECK(q != numbers_of(*two.tensor("model.layers.0.self_attn.q_proj.weight", {48, 48})));
    CHECK(q != numbers_of(*one.tensor("model.layers.1.self_attn.q_proj.weight", {48, 48})));
    CHECK(q != numbers_of(*one.tensor("model.layers.0.self_attn.o_proj.weight", {48, 48})));
}

TEST_CASE("random matrices have a deviation near 1 / sqrt(inputs), norms are near 1") {
    const kv::random_weights weights(small(), 3, kv::dtype::f32);
    const auto down = numbers_of(*weights.tensor("model.layers.0.mlp.down_proj.weight", {48, 80}));
    CHECK(deviation(down, 0.0) * std::sqrt(80.0) == Approx(1.0).margin(0.45));
    const auto head = numbers_of(*weights.tensor("lm_head.weight", {300, 48}));
    CHECK(deviation(head, 0.0) * std::sqrt(48.0) == Approx(1.0).margin(0.45));
    const auto norm = numbers_of(*weights.tensor("model.norm.weight", {48}));
    CHECK(std::ranges::all_of(norm, [](float x) { return x >= 0.5f && x <= 1.5f; }));
    CHECK(deviation(norm, 1.0) == Approx(0.144).margin(0.06));
}

TEST_CASE("bfloat16 weights are the float32 ones, rounded to nearest even") {
    const kv::random_weights wide(small(), 4, kv::dtype::f32), narrow(small(), 4, kv::dtype::bf16);
    const auto exact = numbers_of(*wide.tensor("lm_head.weight", {300, 48}));
    const auto rounded = numbers_of(*narrow.tensor("lm_head.weight", {300, 48}));
    for (std::size_t i = 0; i < exact.size(); ++i) {
        REQUIRE((std::bit_cast<std::uint32_t>(rounded[i]) & 0xffff) == 0);
        REQUIRE(std::abs(rounded[i] - exact[i]) <= std::abs(exact[i]) * 0x1p-8f);
    }
    CHECK(rounded != exact);
}

TEST_CASE("a random model runs on float32 or bfloat16 weights") {
    CHECK(kv::make_random_model(small(), 5).vocabulary() == 300);
    CHECK(kv::make_random_model(small(), 5, kv::dtype::bf16).id({}).weight_format == "bf16");
    auto impossible = small();
    impossible.kv_heads = 3;
    CHECK_THROWS_AS(kv::make_random_model(impossible, 5), kv::contract_violation);
}
