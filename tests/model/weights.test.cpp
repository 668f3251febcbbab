// SPDX-License-Identifier: MIT
#include <kvcache/kvcache.hpp>
#include <kvcache/model/weights.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernel/blocks.hpp"
#include "kernel/numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

// Random weights: matrices in quantised blocks, or the same weights in float32. Values are Q6_K, the others Q4_1.
class random_source {
public:
    explicit random_source(bool widened) : widened_(widened) {}

    [[nodiscard]] kv::result<kv::tensor_view> tensor(std::string_view name,
                                                     std::initializer_list<std::size_t> shape) const {
        const std::vector<std::size_t> extents(shape);
        std::vector<std::byte>& bytes = held_[std::string(name)];
        std::uint64_t seed = 1;
        for (const char letter : name)
            seed = seed * 31 + static_cast<std::uint64_t>(letter);
        if (extents.size() == 1) {
            auto numbers = numbers::uniforms(seed, extents[0]);
            std::ranges::for_each(numbers, [](float& x) { x = 1.0f + x / 4.0f; });
            const auto raw = std::as_bytes(std::span(numbers));
            bytes.assign(raw.begin(), raw.end());
            return kv::tensor_view{kv::dtype::f32, extents, bytes};
        }
        const auto format = name.find("v_proj") != name.npos ? kv::block_format::q6_k : kv::block_format::q4_1;
        bytes = blocks::usual(format, extents[0] * extents[1] / kv::shape_of(format).weights, seed);
        kv::tensor_view view{kv::dtype::f32, extents, bytes, format};
        if (widened_) {
            std::vector<float> numbers(extents[0] * extents[1]);
            view.read(0, numbers);
            const auto raw = std::as_bytes(std::span(numbers));
            bytes.assign(raw.begin(), raw.end());
            view = {kv::dtype::f32, extents, bytes};
        }
        return view;
    }

private:
    bool widened_;
    mutable std::map<std::string, std::vector<std::byte>> held_;
};

kv::transformer made(bool widened) {
    const kv::model_config config{.hidden_size = 256,
                                  .intermediate_size = 96,
                                  .layers = 2,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .head_dim = 64,
                                  .vocabulary = 90,
                                  .tied_head = true};
    auto weights = kv::load_weights(config, random_source(widened), [](std::size_t, std::size_t) {});
    REQUIRE(weights);
    return {config, *std::move(weights)};
}

// Logits of 20 tokens, prefilled `split` at a time.
std::vector<float> logits(const kv::transformer& model, std::size_t split) {
    auto cache = kv::make_cache({model.shape(16), {.bytes = 16u << 20}});
    kv::thread_pool threads(2);
    kv::pipeline pipeline(cache, model, threads, split);
    std::vector<kv::token_id> prompt;
    for (std::int32_t i = 0; i < 20; ++i)
        prompt.push_back(kv::token_id{i * 7 % 90});
    const auto filled = pipeline.prefill(prompt, kv::logits_mode::all);
    REQUIRE(filled);
    return {filled->logits.data(), filled->logits.data() + filled->logits.size()};
}

} // namespace

TEST_CASE("a model in quantised blocks has the logits of its dequantised weights, and a fraction of their bytes") {
    const auto blocks = made(false), widened = made(true);
    CHECK(blocks.weight_bytes() * 5 < widened.weight_bytes());
    CHECK(blocks.id({}).weight_format == "Q4_1");
    CHECK(widened.id({}).weight_format == "f32");
    const auto want = logits(widened, 20);
    for (const std::size_t split : {1u, 3u, 20u})
        CHECK(numbers::same_bits(logits(blocks, split), want));
}

TEST_CASE("a model in blocks with int8 activations is another model, the same for every split of a prompt") {
    kv::thread_pool two(2);
    const auto exact = made(false), rounded = exact.in_int8(two);
    CHECK(rounded.id({}).weight_format == "Q4_1, int8 activations");
    CHECK(rounded.weight_bytes() == exact.weight_bytes());
    const auto want = logits(exact, 20), whole = logits(rounded, 20);
    CHECK_FALSE(numbers::same_bits(want, whole));
    for (const std::size_t split : {1u, 3u, 13u})
        CHECK(numbers::same_bits(logits(rounded, split), whole));
    double error = 0.0, size = 0.0;
    for (std::size_t i = 0; i < want.size(); ++i) {
        error += double{want[i] - whole[i]} * double{want[i] - whole[i]};
        size += double{want[i]} * double{want[i]};
    }
    CHECK(error < size / 400.0);
}
