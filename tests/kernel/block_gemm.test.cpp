// SPDX-License-Identifier: MIT
#include <kvcache/kernel/block_gemm.hpp>
#include <kvcache/kernel/gemm.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernel/block_problem.hpp"
#include "kernel/blocks.hpp"
#include "kernel/numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

// (rows, outputs + 2), the last two untouched
template <class Matrix>
std::vector<float> product(const std::vector<float>& x, std::size_t rows, const Matrix& w, kv::thread_pool& threads) {
    std::vector<float> y(rows * (w.outputs() + 2), 7.0f);
    kv::gemm({x.data(), rows, w.inputs() + 3}, w, {y.data(), w.outputs() + 2}, threads);
    return y;
}

kv::packed_matrix<float> widened(const blocks::problem& p) {
    kv::packed_matrix<float> made(p.outputs, p.inputs);
    for (std::size_t output = 0; output < p.outputs; ++output)
        made.set_row(output, std::span(p.weights).subspan(output * p.inputs, p.inputs));
    return made;
}

} // namespace

TEST_CASE("a product of blocks has the bits of the product of their weights, at every shape and on any threads") {
    auto threads = blocks::pools(4);
    for (const kv::block_format format : blocks::quantized()) {
        const std::size_t block = kv::shape_of(format).weights;
        const auto check = [&](std::size_t rows, std::size_t outputs, std::size_t inputs) {
            const blocks::problem p({{format, outputs}}, inputs, 100 * outputs + inputs);
            const auto x = numbers::uniforms(rows, rows * (inputs + 3), 2.0f);
            const auto want = product(x, rows, widened(p), threads[0]);
            for (auto& pool : threads)
                if (!numbers::same_bits(product(x, rows, p.matrix, pool), want))
                    FAIL(kv::name_of(format) << ": " << rows << " rows, " << outputs << " outputs, " << inputs
                                             << " inputs, " << pool.threads() << " threads");
        };
        for (std::size_t rows = 1; rows <= 20; ++rows)
            for (const std::size_t outputs : {1u, 17u, 33u, 48u, 70u, 112u})
                check(rows, outputs, block);
        for (std::size_t outputs = 1; outputs <= 70; ++outputs)
            for (const std::size_t rows : {1u, 2u, 12u})
                check(rows, outputs, 2 * block);
        for (std::size_t blocks = 1; blocks <= 9; ++blocks)
            for (const std::size_t rows : {1u, 3u, 10u})
                check(rows, 40, blocks * block);
        check(150, 65, 1280); // several blocks of rows and of inputs
        SUCCEED();
    }
}

TEST_CASE("parts of different formats are one product") {
    using enum kv::block_format;
    auto threads = blocks::pools(3);
    const blocks::problem p({{q4_k, 100}, {q6_k, 33}, {iq4_xs, 70}, {q2_k, 1}}, 512, 8);
    const auto w = widened(p);
    for (const std::size_t rows : {1u, 2u, 9u, 10u, 40u, 140u}) {
        const auto x = numbers::uniforms(rows, rows * 515);
        const auto want = product(x, rows, w, threads[0]);
        for (auto& pool : threads)
            CHECK(numbers::same_bits(product(x, rows, p.matrix, pool), want));
    }
}

TEST_CASE("extreme scales give the numbers of the product of the weights") {
    kv::thread_pool alone;
    for (const kv::block_format format : blocks::quantized()) {
        for (const std::size_t count : {1u, 49u}) { // in one block an infinite scale meets no other
            const std::size_t outputs = 100, inputs = count * kv::shape_of(format).weights;
            const blocks::problem p(kv::block_part{format, outputs}, inputs, blocks::extreme(format));
            const auto w = widened(p);
            for (const std::size_t rows : {1u, 3u, 11u}) {
                const auto x = numbers::uniforms(rows, rows * (inputs + 3));
                const auto want = product(x, rows, w, alone), got = product(x, rows, p.matrix, alone);
                std::size_t wrong = 0;
                for (std::size_t i = 0; i < want.size(); ++i)
                    wrong += !numbers::same_bits(want[i], got[i]) && !(std::isnan(want[i]) && std::isnan(got[i]));
                INFO(kv::name_of(format) << ", " << rows << " rows, " << count << " blocks");
                CHECK(wrong == 0);
            }
        }
    }
}

TEST_CASE("a product of blocks without rows or inputs writes nothing or zeros") {
    kv::thread_pool alone;
    const blocks::problem none({{kv::block_format::q8_0, 40}}, 0, 1), some({{kv::block_format::q8_0, 40}}, 32, 1);
    const std::vector<float> x(300 * 3);
    for (const std::size_t rows : {1u, 2u, 12u, 300u}) {
        const auto y = product(x, rows, none.matrix, alone);
        for (std::size_t i = 0; i < y.size(); ++i)
            REQUIRE(y[i] == (i % 42 < 40 ? 0.0f : 7.0f));
    }
    CHECK(product({}, 0, some.matrix, alone).empty());
}
