// SPDX-License-Identifier: MIT
#include <kvcache/kernel/gemm.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernel/numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

// `number` truncated to the format. Requires: |number| < 65536.
template <class Weight>
Weight narrowed(float number) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(number), sign = bits >> 16 & 0x8000;
    if constexpr (std::same_as<Weight, float>)
        return number;
    else if constexpr (std::same_as<Weight, kv::bfloat16>)
        return {static_cast<std::uint16_t>(bits >> 16)};
    else if (std::fabs(number) < 0x1p-14f)
        return {static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(std::fabs(number) * 0x1p24f))};
    else
        return {static_cast<std::uint16_t>(sign | (((bits & 0x7fffffff) >> 13) - (112 << 10)))};
}

// A GEMM problem with straightforward reference implementations.
template <class Weight>
struct problem {
    std::size_t rows, outputs, inputs;
    std::vector<float> x;       // (rows, inputs + 3)
    std::vector<float> weights; // (outputs, inputs), widened
    kv::packed_matrix<Weight> packed;

    problem(std::size_t m, std::size_t n, std::size_t k, std::uint64_t seed)
        : rows(m),
          outputs(n),
          inputs(k),
          x(numbers::uniforms(seed, m * (k + 3), 2.0f)),
          weights(numbers::uniforms(seed + 1, n * k)),
          packed(n, k) {
        std::vector<Weight> row(k);
        for (std::size_t output = 0; output < n; ++output) {
            for (std::size_t i = 0; i < k; ++i) {
                float& w = weights[output * k + i];
                row[i] = narrowed<Weight>(w);
                w = kv::widen(row[i]);
            }
            packed.set_row(output, row);
        }
    }

    [[nodiscard]] std::size_t in_stride() const { return inputs + 3; }
    [[nodiscard]] std::size_t out_stride() const { return outputs + 2; }

    // (rows, outputs + 2), the last two untouched
    [[nodiscard]] std::vector<float> run(kv::thread_pool& threads) const {
        std::vector<float> y(rows * out_stride(), 7.0f);
        kv::gemm({x.data(), rows, in_stride()}, packed, {y.data(), out_stride()}, threads);
        return y;
    }

    // One chain of fused multiply-adds over ascending inputs.
    [[nodiscard]] std::vector<float> chains() const {
        std::vector<float> y(rows * out_stride(), 7.0f);
        for (std::size_t r = 0; r < rows; ++r)
            for (std::size_t n = 0; n < outputs; ++n) {
                float sum = 0.0f;
                for (std::size_t k = 0; k < inputs; ++k)
                    sum = std::fma(x[r * in_stride() + k], weights[n * inputs + k], sum);
                y[r * out_stride() + n] = sum;
            }
        return y;
    }
};

} // namespace

TEMPLATE_TEST_CASE("a product is one fma chain an output, bit for bit, at every shape and on any threads", "", float,
                   kv::bfloat16, kv::half) {
    std::vector<kv::thread_pool> thread_pools;
    for (std::size_t threads = 1; threads <= 4; ++threads)
        thread_pools.emplace_back(threads);
    std::size_t shapes = 0;
    const auto check = [&](std::size_t m, std::size_t n, std::size_t k) {
        const problem<TestType> p(m, n, k, 1000 * m + n + k);
        const auto want = p.chains();
        for (auto& threads : thread_pools) {
            INFO(m << " rows, " << n << " outputs, " << k << " inputs, " << threads.threads() << " threads");
            REQUIRE(numbers::same_bits(p.run(threads), want));
        }
        ++shapes;
    };
    for (const std::size_t m : {1u, 2u, 3u, 4u, 5u, 11u, 12u, 13u, 16u, 17u, 28u, 50u})
        for (const std::size_t n : {1u, 31u, 32u, 33u, 64u, 127u, 128u, 129u, 130u})
            for (const std::size_t k : {1u, 2u, 17u, 70u})
                check(m, n, k);
    for (std::uint64_t i = 0; i < 200; ++i) {
        const auto h = numbers::hashed(99, i);
        check(1 + h % 50, 1 + (h >> 16) % 130, 1 + (h >> 32) % 70);
    }
    // Several blocks of rows and of inputs, and left-over inputs.
    check(33, 100, 641);
    check(129, 49, 650);
    check(300, 65, 1283);
    CHECK(shapes == 635);
}

TEST_CASE("a product is close to its double reference") {
    kv::thread_pool alone;
    for (const std::size_t k : {64u, 576u, 3000u}) {
        const problem<float> p(3, 40, k, k);
        const auto y = p.run(alone);
        for (std::size_t r = 0; r < p.rows; ++r)
            for (std::size_t n = 0; n < p.outputs; ++n) {
                double truth = 0.0, size = 0.0;
                for (std::size_t i = 0; i < k; ++i) {
                    const double term =
                        static_cast<double>(p.x[r * p.in_stride() + i]) * static_cast<double>(p.weights[n * k + i]);
                    truth += term;
                    size += std::abs(term);
                }
                REQUIRE(std::abs(static_cast<double>(y[r * p.out_stride() + n]) - truth) <= 1e-6 * size);
            }
    }
}

TEST_CASE("the rows of a product do not know each other") {
    kv::thread_pool alone;
    const problem<kv::bfloat16> p(29, 100, 48, 5);
    const auto together = p.run(alone);
    for (std::size_t r = 0; r < p.rows; ++r) {
        std::vector<float> y(p.outputs);
        kv::gemm({p.x.data() + r * p.in_stride(), 1, p.in_stride()}, p.packed, {y.data(), p.outputs}, alone);
        REQUIRE(numbers::same_bits(y, {together.data() + r * p.out_stride(), p.outputs}));
    }
}

TEMPLATE_TEST_CASE("a product without rows or inputs writes nothing or zeros", "", float, kv::bfloat16, kv::half) {
    kv::thread_pool alone, three(3);
    const kv::packed_matrix<TestType> no_inputs(40, 0), some(40, 4);
    const float x[4] = {};
    std::vector<float> none(40, 3.0f);
    kv::gemm({x, 0, 4}, some, {none.data(), 40}, alone);
    CHECK(std::ranges::count(none, 3.0f) == 40);
    for (kv::thread_pool* threads : {&alone, &three})
        for (const std::size_t rows : {1u, 2u, 6u, 7u, 12u, 13u, 100u, 300u}) {
            std::vector<float> y(rows * 42, 3.0f);
            kv::gemm({x, rows, 0}, no_inputs, {y.data(), 42}, *threads);
            INFO(rows << " rows");
            CHECK(std::ranges::count(y, 0.0f) == static_cast<std::ptrdiff_t>(rows * 40));
            CHECK(std::ranges::count(y, 3.0f) == static_cast<std::ptrdiff_t>(rows * 2));
        }
}
