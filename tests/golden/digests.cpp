// SPDX-License-Identifier: MIT
//
// The numeric contract, nailed down: digests of what the kernels, attention and whole models compute. This program is
// built several times, for other lane widths, other -ffp-contract and other optimisation (see golden.cmake), and every
// build must give the digests below. A change here is a new revision of the contract: old caches are then refused.

#include <kvcache/cache/compose.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/kernel/block_gemm.hpp>
#include <kvcache/kernel/block_int8_gemm.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/session/sampler.hpp>
#include <kvcache/testing/random_weights.hpp>

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "attention/pages.hpp"
#include "kernel/block_problem.hpp"
#include "kernel/blocks.hpp"
#include "kernel/numbers.hpp"

namespace kv = kvcache;
using namespace kvcache::literals;

namespace {

// Adds the bits of numbers, the same on a machine of any byte order.
void add(kv::digest_builder& builder, std::span<const float> numbers) {
    for (const float x : numbers)
        builder.number(std::bit_cast<std::uint32_t>(x));
}

std::string of(std::span<const float> numbers) {
    kv::digest_builder builder;
    add(builder, numbers);
    return kv::to_string(builder.finish());
}

// -100 to 100 in steps of 1 / 64, through a lane-wise function.
template <class Kernel>
std::string grid(Kernel kernel) {
    std::vector<float> numbers(12800);
    for (std::size_t i = 0; i < numbers.size(); ++i)
        numbers[i] = static_cast<float>(static_cast<int>(i) - 6400) * 0x1p-6f;
    for (std::size_t i = 0; i < numbers.size(); i += 16)
        kernel(kv::f32x16::load(&numbers[i])).store(&numbers[i]);
    return of(numbers);
}

// Weight `i` of a product, exact in its format: of F16 any number under 2, tiny ones too.
template <class Weight>
Weight weight(std::size_t i) {
    const float uniform = numbers::uniform(7, i);
    if constexpr (std::same_as<Weight, float>)
        return uniform;
    else if constexpr (std::same_as<Weight, kv::bfloat16>)
        return {static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(uniform) >> 16)};
    else
        return {static_cast<std::uint16_t>(numbers::hashed(7, i) & 0xbfff)};
}

template <class Weight>
std::string product() {
    kv::thread_pool threads(2);
    kv::digest_builder builder;
    for (const std::size_t rows : {1u, 5u, 13u, 26u}) {
        constexpr std::size_t outputs = 170, inputs = 96;
        const auto x = numbers::uniforms(rows, rows * inputs, 2.0f);
        kv::packed_matrix<Weight> packed(outputs, inputs);
        std::vector<Weight> row(inputs);
        for (std::size_t n = 0; n < outputs; ++n) {
            for (std::size_t k = 0; k < inputs; ++k)
                row[k] = weight<Weight>(n * inputs + k);
            packed.set_row(n, row);
        }
        std::vector<float> y(rows * outputs);
        kv::gemm({x.data(), rows, inputs}, packed, {y.data(), outputs}, threads);
        add(builder, y);
    }
    return kv::to_string(builder.finish());
}

// The products of all block formats, exact or with int8 activations.
template <class... Scratch>
std::string block_gemm(Scratch... scratch) {
    kv::thread_pool threads(2);
    kv::digest_builder builder;
    for (const kv::block_format format : blocks::quantized()) {
        const blocks::problem w({{format, 100}}, 512, 7);
        for (const std::size_t rows : {1u, 2u, 5u, 13u, 26u}) {
            const auto x = numbers::uniforms(rows, rows * w.inputs, 2.0f);
            std::vector<float> y(rows * w.outputs);
            kv::gemm({x.data(), rows, w.inputs}, w.matrix, {y.data(), w.outputs}, threads, scratch...);
            add(builder, y);
        }
    }
    return kv::to_string(builder.finish());
}

std::string norms() {
    kv::digest_builder builder;
    for (const std::size_t size : {24u, 64u, 83u, 576u}) {
        const auto x = numbers::uniforms(size, size, 4.0f), weight = numbers::uniforms(size + 1, size);
        std::vector<float> out(size);
        kv::rms_norm(x, weight, 1e-5f, out);
        add(builder, out);
        kv::gated_silu(x, out, out);
        add(builder, out);
    }
    return kv::to_string(builder.finish());
}

std::string rotations(const kv::rope& rope) {
    kv::digest_builder builder;
    for (const double f : rope.frequencies())
        builder.number(std::bit_cast<std::uint64_t>(f));
    std::vector<float> rotation(2 * rope.half()), head(2 * rope.half());
    for (const std::int64_t position : {0, 1, 2, 17, 1000, 4095, 131071, 1 << 29, -1, -4000}) {
        rope.fill(position, rotation);
        add(builder, rotation);
        kv::rotate_head(numbers::uniforms(3, head.size(), 4.0f), rotation, head);
        add(builder, head);
    }
    return kv::to_string(builder.finish());
}

std::string attention(std::uint32_t dim) {
    const pages::sequence s(6, 2, dim, 1100, dim);
    const pages::written w(s, 64, pages::in_place(1100, 64), 0.0f);
    kv::digest_builder builder;
    add(builder, w.run(0, 40, 16));
    add(builder, w.run(1010, 1100, 16));
    const pages::written pieces(s, 64, {{64, 0, 0}, {5, 59, 9}, {17, 15, -40}, {30, 33, 0}}, 0.0f);
    add(builder, pieces.run(60, 116, 16));
    return kv::to_string(builder.finish());
}

// With windows, soft caps and sinks.
std::string attention_of_groups() {
    const std::vector<float> sinks = {0.5f, -3.0f, 4.0f, 0.0f, 9.0f, -40.0f};
    pages::sequence s(6, 2, 64, 1100, 5);
    const pages::written w(s, 64, pages::in_place(1100, 64), 0.0f);
    kv::digest_builder builder;
    for (const std::uint32_t window : {0u, 20u, 128u, 600u}) {
        s.shape.window = window;
        s.shape.soft_cap = window == 128 ? 0.0f : 3.0f;
        s.shape.sinks = window == 20 ? nullptr : sinks.data();
        add(builder, w.run(0, 70, 16));
        add(builder, w.run(1010, 1100, 16));
    }
    return kv::to_string(builder.finish());
}

// All logits of a 70-token prompt on a random model of grouped queries, and tokens drawn from them.
struct model_digests {
    std::string logits, tokens;
};

model_digests model(const kv::model_config& config, kv::dtype format) {
    const kv::transformer model = kv::make_random_model(config, 20, format);
    auto cache = kv::make_cache({model.shape(32), {.bytes = 8_MiB}});
    kv::thread_pool threads(2);
    kv::pipeline pipeline(cache, model, threads);
    std::vector<kv::token_id> prompt;
    for (std::uint64_t i = 0; i < 70; ++i)
        prompt.push_back(kv::token_id{static_cast<std::int32_t>(numbers::hashed(70, i) % config.vocabulary)});
    const auto filled = pipeline.prefill(prompt, kv::logits_mode::all);
    if (!filled)
        return {filled.error().message, filled.error().field};
    kv::digest_builder logits, tokens;
    for (std::size_t row = 0; row < 70; ++row) {
        const auto numbers = kv::row_of(filled->logits, row);
        add(logits, numbers);
        for (const float temperature : {0.0f, 0.7f, 1.0f, 3.0f})
            tokens.number(static_cast<std::uint64_t>(kv::index_of(kv::sampler{temperature, 5, 1}.draw(numbers, row))));
    }
    return {kv::to_string(logits.finish()), kv::to_string(tokens.finish())};
}

struct golden {
    const char* name;
    const char* digest;
};

constexpr golden goldens[] = {
#include "golden/digests.inc"
};

} // namespace

int main() {
    kv::model_config wide{.hidden_size = 384,
                          .intermediate_size = 320,
                          .layers = 2,
                          .heads = 6,
                          .kv_heads = 2,
                          .head_dim = 64,
                          .vocabulary = 500};
    wide.qkv_bias = wide.output_bias = wide.mlp_bias = true;
    kv::model_config narrow{.hidden_size = 144,
                            .intermediate_size = 200,
                            .layers = 2,
                            .heads = 6,
                            .kv_heads = 2,
                            .head_dim = 24,
                            .vocabulary = 333};
    narrow.qk_norm = kv::head_norm::each;
    narrow.tied_head = true;
    const auto biased = model(wide, kv::dtype::f32), normed = model(narrow, kv::dtype::bf16);

    const kv::rope_config llama{.theta = 500000.0, .scaling = kv::rope_config::kind::llama3, .factor = 8.0};
    const std::string found[] = {
        grid([](const kv::f32x16& x) { return kv::exp(x); }),
        grid([](const kv::f32x16& x) { return kv::silu(x); }),
        product<float>(),
        product<kv::bfloat16>(),
        product<kv::half>(),
        block_gemm(),
        block_gemm(kv::int8_block_rows()),
        norms(),
        rotations(kv::make_rope({}, 64)),
        rotations(kv::make_rope(llama, 128)),
        attention(64),
        attention(24),
        attention_of_groups(),
        biased.logits,
        biased.tokens,
        normed.logits,
        normed.tokens,
    };
    int wrong = 0;
    for (std::size_t i = 0; i < std::size(goldens); ++i) {
        const bool same = found[i] == goldens[i].digest;
        wrong += !same;
        std::printf("{\"%s\", \"%s\"},%s\n", goldens[i].name, found[i].c_str(), same ? "" : " // differs");
    }
    return wrong != 0;
}
