// SPDX-License-Identifier: MIT
#include <kvcache/kernel/block_int8_gemm.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernel/block_problem.hpp"
#include "kernel/blocks.hpp"
#include "kernel/numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

// (rows, outputs + 2), the last two untouched
std::vector<float> product(std::span<const float> x, std::size_t rows, const kv::block_matrix& w,
                           kv::thread_pool& threads) {
    std::vector<float> y(rows * (w.outputs() + 2), 7.0f);
    kv::int8_block_rows scratch;
    kv::gemm({x.data(), rows, w.inputs() + 3}, w, {y.data(), w.outputs() + 2}, threads, scratch);
    return y;
}

// A row of activations, rounded as documented.
struct rounded_row {
    std::vector<int> levels;
    std::vector<float> scales;

    explicit rounded_row(std::span<const float> x) : levels(x.size()), scales(x.size() / 32) {
        for (std::size_t b = 0; b < scales.size(); ++b) {
            float most = 0.0f;
            bool finite = true;
            for (const float v : x.subspan(b * 32, 32)) {
                most = std::max(most, std::fabs(v));
                finite = finite && std::isfinite(v);
            }
            scales[b] = finite ? most / 127.0f : numbers::not_a_number;
            const float one = 127.0f / most;
            if (finite && std::isfinite(one))
                for (std::size_t i = b * 32; i < b * 32 + 32; ++i)
                    levels[i] = static_cast<int>(std::nearbyint(double{x[i]} * double{one}));
        }
    }
};

// The documented arithmetic for one output: plain integers, and one order of additions.
float plainly(const rounded_row& x, kv::block_format format, std::span<const std::byte> blocks) {
    const kv::block_shape shape = kv::shape_of(format);
    float y = 0.0f;
    for (std::size_t b = 0; b < blocks.size() / shape.bytes; ++b) {
        const kv::quant_block block = kv::read_block(format, blocks.subspan(b * shape.bytes, shape.bytes));
        const std::size_t group = block.layout.group;
        for (std::size_t g = 0; g < shape.weights / group; ++g) {
            const std::size_t k = b * shape.weights + g * group;
            int sum = 0, levels = 0;
            for (std::size_t i = 0; i < group; ++i) {
                sum += block.layout.level(block.codes[g * group + i]) * x.levels[k + i];
                levels += x.levels[k + i];
            }
            const float scale = block.scale * static_cast<float>(block.scales[g]), of_row = x.scales[k / 32];
            y = std::fma(static_cast<float>(sum), scale * of_row, y);
            if (block.layout.offset)
                y = std::fma(block.offset * static_cast<float>(block.offsets[g]), of_row * static_cast<float>(levels),
                             y);
        }
    }
    return y;
}

bool alike(float x, float y) {
    return numbers::same_bits(x, y) || (std::isnan(x) && std::isnan(y));
}

// Compares a product with the plain arithmetic.
void check(kv::block_format format, std::size_t rows, std::size_t outputs, std::size_t inputs,
           const std::vector<std::byte>& bytes, std::span<kv::thread_pool> threads, float size = 2.0f) {
    const blocks::problem p(kv::block_part{format, outputs}, inputs, bytes);
    const auto x = numbers::uniforms(rows + outputs, rows * (inputs + 3), size);
    const std::size_t row_bytes = inputs / kv::shape_of(format).weights * kv::shape_of(format).bytes;
    std::vector<float> want(rows * (outputs + 2), 7.0f);
    for (std::size_t r = 0; r < rows; ++r) {
        const rounded_row row({x.data() + r * (inputs + 3), inputs});
        for (std::size_t n = 0; n < outputs; ++n)
            want[r * (outputs + 2) + n] = plainly(row, format, std::span(bytes).subspan(n * row_bytes, row_bytes));
    }
    for (auto& pool : threads) {
        const auto got = product(x, rows, p.matrix, pool);
        if (!std::ranges::equal(got, want, alike))
            FAIL(kv::name_of(format) << ": " << rows << " rows, " << outputs << " outputs, " << inputs << " inputs, "
                                     << pool.threads() << " threads");
    }
    SUCCEED();
}

} // namespace

TEST_CASE("a product of blocks and int8 activations is the documented arithmetic, bit for bit") {
    auto threads = blocks::pools(4);
    for (const kv::block_format format : blocks::quantized()) {
        const std::size_t block = kv::shape_of(format).weights;
        const auto run = [&](std::size_t rows, std::size_t outputs, std::size_t inputs) {
            check(format, rows, outputs, inputs, blocks::usual(format, outputs * inputs / block, outputs), threads);
        };
        for (std::size_t rows = 1; rows <= 20; ++rows)
            for (const std::size_t outputs : {1u, 17u, 64u, 70u})
                run(rows, outputs, block);
        for (std::size_t outputs = 1; outputs <= 70; ++outputs)
            for (const std::size_t rows : {1u, 2u, 13u})
                run(rows, outputs, block);
        for (std::size_t blocks = 1; blocks <= 9; ++blocks)
            for (const std::size_t rows : {1u, 3u, 14u})
                run(rows, 20, blocks * block);
        run(100, 17, 1280); // several blocks of inputs
        run(600, 17, 256);  // several blocks of rows
    }
}

TEST_CASE("extreme scales and activations give the numbers of the documented arithmetic") {
    auto threads = blocks::pools(1);
    for (const kv::block_format format : blocks::quantized())
        for (const std::size_t rows : {1u, 5u})
            for (const float size : {1e-42f, 1e-30f, 1e30f})
                check(format, rows, 10, 49 * kv::shape_of(format).weights, blocks::extreme(format), threads, size);
}

TEST_CASE("a row of a block product has the same bits alone, among others, and with parts of other formats") {
    using enum kv::block_format;
    auto threads = blocks::pools(3);
    const blocks::problem p({{q4_k, 100}, {q6_k, 33}, {q8_0, 70}, {q2_k, 1}}, 512, 8);
    const auto x = numbers::uniforms(3, 150 * 515);
    const auto all = product(x, 150, p.matrix, threads[0]);
    for (auto& pool : threads)
        CHECK(numbers::same_bits(product(x, 150, p.matrix, pool), all));
    for (std::size_t row = 0; row < 150; row += 7)
        for (const std::size_t count : {1u, 2u, 9u}) {
            const std::size_t rows = std::min<std::size_t>(count, 150 - row);
            const auto some = product(std::span(x).subspan(row * 515), rows, p.matrix, threads[row % 3]);
            CHECK(numbers::same_bits(some, std::span(all).subspan(row * 206, rows * 206)));
        }
}

TEST_CASE("activations that are not finite make NaN of their own row alone") {
    kv::thread_pool alone;
    const blocks::problem p({{kv::block_format::q4_1, 20}}, 96, 4);
    for (const float bad : {numbers::infinity, -numbers::infinity, numbers::not_a_number}) {
        auto x = numbers::uniforms(9, 5 * 99);
        const auto before = product(x, 5, p.matrix, alone);
        x[2 * 99 + 40] = bad;
        const auto after = product(x, 5, p.matrix, alone);
        for (std::size_t i = 0; i < after.size(); ++i)
            CHECK((i / 22 == 2 && i % 22 < 20 ? std::isnan(after[i]) : numbers::same_bits(after[i], before[i])));
    }
}

TEST_CASE("int8 activations stay within their rounding of the exact product") {
    kv::thread_pool alone;
    for (const kv::block_format format : blocks::quantized()) {
        const blocks::problem p({{format, 48}}, 512, 11);
        const auto x = numbers::uniforms(1, 4 * 515);
        const auto y = product(x, 4, p.matrix, alone);
        double error = 0.0, norm = 0.0;
        for (std::size_t row = 0; row < 4; ++row)
            for (std::size_t output = 0; output < 48; ++output) {
                double exact = 0.0;
                for (std::size_t k = 0; k < 512; ++k)
                    exact += double{x[row * 515 + k]} * double{p.weights[output * 512 + k]};
                error += std::pow(double{y[row * 50 + output]} - exact, 2);
                norm += exact * exact;
            }
        INFO(kv::name_of(format));
        CHECK(std::sqrt(error / norm) < 0.01);
    }
}

TEST_CASE("an int8 product of blocks without rows or inputs writes nothing or zeros") {
    kv::thread_pool alone;
    const blocks::problem none({{kv::block_format::q8_0, 40}}, 0, 1), some({{kv::block_format::q8_0, 40}}, 32, 1);
    const std::vector<float> x(20 * 3);
    for (const std::size_t rows : {1u, 2u, 20u}) {
        const auto y = product(x, rows, none.matrix, alone);
        for (std::size_t i = 0; i < y.size(); ++i)
            REQUIRE(y[i] == (i % 42 < 40 ? 0.0f : 7.0f));
    }
    CHECK(product({}, 0, some.matrix, alone).empty());
}
