// SPDX-License-Identifier: MIT
#include <kvcache/kernel/int8_gemm.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernel/numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

struct problem {
    std::size_t rows, outputs, inputs;
    std::vector<float> x; // (rows, inputs + 3)
    std::vector<float> w; // (outputs, inputs)
    kv::int8_matrix packed;

    problem(std::size_t m, std::size_t n, std::size_t k, std::uint64_t seed)
        : rows(m),
          outputs(n),
          inputs(k),
          x(numbers::uniforms(seed, m * (k + 3), 2.0f)),
          w(numbers::uniforms(seed + 1, n * k)),
          packed(n, k) {
        for (std::size_t output = 0; output < n; ++output)
            packed.set_row(output, {&w[output * k], k});
    }

    [[nodiscard]] std::vector<float> run(std::size_t first, std::size_t count, kv::thread_pool& threads) const {
        std::vector<float> y(count * (outputs + 2), -1.0f);
        kv::int8_rows scratch;
        kv::gemm({&x[first * (inputs + 3)], count, inputs + 3}, packed, {y.data(), outputs + 2}, threads, scratch);
        return y;
    }

    // Sums in plain integers, with levels rounded as documented.
    [[nodiscard]] float plainly(std::size_t row, std::size_t output) const {
        const float* of = &x[row * (inputs + 3)];
        float most = 0.0f, heaviest = 0.0f;
        for (std::size_t k = 0; k < inputs; ++k) {
            most = std::max(most, std::fabs(of[k]));
            heaviest = std::max(heaviest, std::fabs(w[output * inputs + k]));
        }
        const float scale = heaviest / 127.0f, levels = most > 0.0f ? 127.0f / most : 0.0f;
        std::int64_t sum = 0;
        for (std::size_t k = 0; k < inputs; ++k)
            sum += static_cast<std::int64_t>(std::nearbyint(double(of[k]) * double(levels))) *
                   static_cast<std::int64_t>(scale > 0.0f ? std::nearbyint(w[output * inputs + k] / scale) : 0.0f);
        return static_cast<float>(sum) * (most / 127.0f * scale);
    }
};

} // namespace

TEST_CASE("an int8 product is the exact sum of its levels, scaled, and writes nothing else") {
    kv::thread_pool alone;
    const auto check = [&](std::size_t rows, std::size_t outputs, std::size_t inputs) {
        const problem p(rows, outputs, inputs, inputs * 1000 + outputs);
        const auto y = p.run(0, rows, alone);
        std::size_t wrong = 0;
        for (std::size_t row = 0; row < rows; ++row)
            for (std::size_t i = 0; i < outputs + 2; ++i)
                wrong += y[row * (outputs + 2) + i] != (i < outputs ? p.plainly(row, i) : -1.0f);
        INFO(rows << " rows, " << inputs << " inputs, " << outputs << " outputs");
        CHECK(wrong == 0);
    };
    for (const std::size_t inputs : {1u, 3u, 4u, 5u, 16u, 31u, 64u, 130u, 577u})
        for (const std::size_t outputs : {1u, 15u, 16u, 17u, 33u, 70u})
            for (const std::size_t rows : {1u, 2u, 3u, 5u, 8u, 16u, 17u, 18u, 23u})
                check(rows, outputs, inputs);
    // Several blocks of rows and of inputs.
    check(17, 33, 1283);
    check(133, 17, 640);
    check(277, 16, 645);
}

TEST_CASE("a row of an int8 product has the same bits alone, among others, and on any number of threads") {
    kv::thread_pool alone, three(3);
    const problem p(150, 100, 130, 7); // enough rows to quantize them on several threads too
    const auto all = p.run(0, 150, alone);
    CHECK(numbers::same_bits(all, p.run(0, 150, three)));
    for (std::size_t row = 0; row < 150; row += 7) {
        const auto one = p.run(row, 1, three);
        CHECK(numbers::same_bits(one, {all.begin() + static_cast<std::ptrdiff_t>(row * 102),
                                       all.begin() + static_cast<std::ptrdiff_t>((row + 1) * 102)}));
    }
    // Few rows with strips for every thread, or with fewer panels than threads.
    for (const std::size_t outputs : {16u, 40u, 290u, 600u})
        for (const std::size_t rows : {1u, 2u, 9u}) {
            const problem few(rows, outputs, 4099, outputs);
            const auto once = few.run(0, rows, alone);
            for (const std::size_t members : {2u, 3u, 5u}) {
                kv::thread_pool shared(members);
                INFO(rows << " rows, " << outputs << " outputs, " << members << " threads");
                CHECK(numbers::same_bits(once, few.run(0, rows, shared)));
            }
        }
}

TEST_CASE("an int8 product stays within the rounding of its weights and activations") {
    kv::thread_pool alone;
    const problem p(4, 48, 576, 11);
    const auto y = p.run(0, 4, alone);
    double error = 0.0, norm = 0.0;
    for (std::size_t row = 0; row < 4; ++row)
        for (std::size_t output = 0; output < 48; ++output) {
            double exact = 0.0;
            for (std::size_t k = 0; k < 576; ++k)
                exact += double(p.x[row * 579 + k]) * double(p.w[output * 576 + k]);
            error += (y[row * 50 + output] - exact) * (y[row * 50 + output] - exact);
            norm += exact * exact;
        }
    CHECK(std::sqrt(error / norm) < 0.01);
}

TEST_CASE("the largest levels of the longest row do not overflow, and zeros stay zeros") {
    kv::thread_pool alone;
    constexpr std::size_t inputs = kv::int8_matrix::most_inputs;
    kv::int8_matrix w(2, inputs);
    w.set_row(0, std::vector<float>(inputs, -3.0f));
    w.set_row(1, std::vector<float>(inputs, 0.0f));
    const std::vector<float> x(inputs, 5.0f), none(inputs, 0.0f);
    std::vector<float> y(2);
    kv::int8_rows scratch;
    kv::gemm({x.data(), 1, inputs}, w, {y.data(), 2}, alone, scratch);
    CHECK(y[0] == Approx(-15.0 * inputs).epsilon(1e-6));
    CHECK(y[1] == 0.0f);
    kv::gemm({none.data(), 1, inputs}, w, {y.data(), 2}, alone, scratch);
    CHECK(y[0] == 0.0f);
    CHECK_THROWS_AS(kv::int8_matrix(1, inputs + 1), kv::contract_violation);
}

TEST_CASE("a row with a number that is not finite gives NaN, and no other row does") {
    kv::thread_pool alone;
    problem p(5, 33, 37, 13);
    const auto before = p.run(0, 5, alone);
    for (const float bad : {numbers::infinity, -numbers::infinity, numbers::not_a_number})
        for (std::size_t k = 0; k < 37; ++k)
            for (const std::size_t row : {0u, 3u}) {
                float& number = p.x[row * 40 + k];
                const float good = std::exchange(number, bad);
                const auto y = p.run(0, 5, alone);
                std::size_t wrong = 0;
                for (std::size_t r = 0; r < 5; ++r)
                    for (std::size_t i = 0; i < 33; ++i)
                        wrong += r == row ? !std::isnan(y[r * 35 + i]) : y[r * 35 + i] != before[r * 35 + i];
                number = good;
                INFO(bad << " in row " << row << " at " << k);
                CHECK(wrong == 0);
            }
}

TEST_CASE("an output with a weight that is not finite is NaN, and no other output is") {
    kv::thread_pool alone;
    for (const float bad : {numbers::infinity, -numbers::infinity, numbers::not_a_number})
        for (const std::size_t k : {0u, 1u, 36u}) {
            problem p(3, 33, 37, 17);
            const auto before = p.run(0, 3, alone);
            p.w[20 * 37 + k] = bad;
            p.packed.set_row(20, {&p.w[20 * 37], 37});
            const auto y = p.run(0, 3, alone);
            for (std::size_t row = 0; row < 3; ++row)
                for (std::size_t i = 0; i < 33; ++i)
                    CHECK((i == 20 ? std::isnan(y[row * 35 + i]) : y[row * 35 + i] == before[row * 35 + i]));
        }
}

TEST_CASE("a row too small for a level is a row of zeros") {
    kv::thread_pool alone;
    problem p(3, 17, 20, 19);
    for (const float tiny : {0x1p-149f, 0x1p-127f, 0x1p-122f}) {
        for (std::size_t k = 0; k < 20; ++k)
            p.x[23 + k] = k % 3 == 0 ? 0.0f : k % 2 == 0 ? tiny : -tiny;
        const auto y = p.run(1, 1, alone);
        for (std::size_t i = 0; i < 17; ++i)
            CHECK(y[i] == 0.0f);
    }
}

TEST_CASE("an int8 product without inputs writes zeros") {
    kv::thread_pool alone;
    const kv::int8_matrix none(20, 0);
    kv::int8_rows scratch;
    for (const std::size_t rows : {1u, 13u, 100u}) {
        std::vector<float> y(rows * 20, 3.0f);
        kv::gemm({y.data(), rows, 0}, none, {y.data(), 20}, alone, scratch);
        CHECK(std::ranges::count(y, 0.0f) == static_cast<std::ptrdiff_t>(y.size()));
    }
}
