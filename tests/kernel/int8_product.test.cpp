// SPDX-License-Identifier: MIT
#include <kvcache/kernel/int8_product.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
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

    [[nodiscard]] std::vector<float> run(std::size_t first, std::size_t count, kv::team& threads) const {
        std::vector<float> y(count * (outputs + 2), -1.0f);
        kv::int8_rows scratch;
        kv::product({&x[first * (inputs + 3)], count, inputs + 3}, packed, {y.data(), outputs + 2}, threads, scratch);
        return y;
    }

    // The sums in plain integers, of levels rounded as the documentation says.
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
    kv::team alone;
    for (const std::size_t inputs : {1u, 3u, 4u, 5u, 16u, 31u, 64u, 130u, 577u})
        for (const std::size_t outputs : {1u, 15u, 16u, 17u, 33u, 70u})
            for (const std::size_t rows : {1u, 2u, 3u, 5u, 13u}) {
                const problem p(rows, outputs, inputs, inputs * 1000 + outputs);
                const auto y = p.run(0, rows, alone);
                std::size_t wrong = 0;
                for (std::size_t row = 0; row < rows; ++row)
                    for (std::size_t i = 0; i < outputs + 2; ++i)
                        wrong += y[row * (outputs + 2) + i] != (i < outputs ? p.plainly(row, i) : -1.0f);
                INFO(rows << " rows, " << inputs << " inputs, " << outputs << " outputs");
                CHECK(wrong == 0);
            }
}

TEST_CASE("a row of an int8 product has the same bits alone, among others, and on any number of threads") {
    kv::team alone, three(3);
    const problem p(150, 100, 96, 7);
    const auto all = p.run(0, 150, alone);
    CHECK(numbers::same_bits(all, p.run(0, 150, three)));
    for (std::size_t row = 0; row < 150; row += 7) {
        const auto one = p.run(row, 1, three);
        CHECK(numbers::same_bits(one, {all.begin() + static_cast<std::ptrdiff_t>(row * 102),
                                       all.begin() + static_cast<std::ptrdiff_t>((row + 1) * 102)}));
    }
}

TEST_CASE("an int8 product stays within the rounding of its weights and activations") {
    kv::team alone;
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
    kv::team alone;
    constexpr std::size_t inputs = kv::int8_matrix::most_inputs;
    kv::int8_matrix w(2, inputs);
    w.set_row(0, std::vector<float>(inputs, -3.0f));
    w.set_row(1, std::vector<float>(inputs, 0.0f));
    const std::vector<float> x(inputs, 5.0f), none(inputs, 0.0f);
    std::vector<float> y(2);
    kv::int8_rows scratch;
    kv::product({x.data(), 1, inputs}, w, {y.data(), 2}, alone, scratch);
    CHECK(y[0] == Approx(-15.0 * inputs).epsilon(1e-6));
    CHECK(y[1] == 0.0f);
    kv::product({none.data(), 1, inputs}, w, {y.data(), 2}, alone, scratch);
    CHECK(y[0] == 0.0f);
    CHECK_THROWS_AS(kv::int8_matrix(1, inputs + 1), kv::contract_violation);
}

TEST_CASE("an int8 matrix gives back weights within half a level") {
    const auto weights = numbers::uniforms(3, 30);
    kv::int8_matrix w(1, 30);
    w.set_row(0, weights);
    std::vector<float> back(30);
    w.row(0, back);
    float most = 0.0f;
    for (const float x : weights)
        most = std::max(most, std::fabs(x));
    for (std::size_t k = 0; k < 30; ++k)
        CHECK(std::fabs(back[k] - weights[k]) <= most / 253.9f);
    CHECK_THROWS_AS(w.set_row(1, weights), kv::contract_violation);
}
