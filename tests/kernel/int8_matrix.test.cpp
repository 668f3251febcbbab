// SPDX-License-Identifier: MIT
#include <kvcache/kernel/int8_matrix.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "kernel/numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

// The level of an output's input, from its place among the panels.
std::int8_t level(const kv::int8_matrix& w, std::size_t output, std::size_t k) {
    return w.panel(output / 16)[(k / 4 * 16 + output % 16) * 4 + k % 4];
}

} // namespace

TEST_CASE("an int8 matrix gives back weights within half a level") {
    for (const std::size_t inputs : {1u, 4u, 30u, 577u}) {
        const auto weights = numbers::uniforms(inputs, inputs);
        kv::int8_matrix w(1, inputs);
        w.set_row(0, weights);
        std::vector<float> back(inputs);
        w.row(0, back);
        float most = 0.0f;
        for (const float x : weights)
            most = std::max(most, std::fabs(x));
        for (std::size_t k = 0; k < inputs; ++k)
            CHECK(std::fabs(back[k] - weights[k]) <= most / 253.9f);
    }
}

TEST_CASE("an int8 matrix lies in panels of 16 outputs and fours of inputs, with zeros behind the last") {
    constexpr std::size_t outputs = 35, inputs = 30;
    kv::int8_matrix w(outputs, inputs);
    for (std::size_t output = 0; output < outputs; ++output)
        w.set_row(output, numbers::uniforms(output, inputs));
    CHECK(w.panels() == 3);
    CHECK(w.fours() == 8);
    std::vector<float> row(inputs);
    for (std::size_t output = 0; output < 48; ++output) {
        std::int32_t sum = 0, largest = 0;
        for (std::size_t k = 0; k < 32; ++k) {
            sum += level(w, output, k);
            largest = std::max(largest, std::abs(std::int32_t{level(w, output, k)}));
            if (output >= outputs || k >= inputs)
                CHECK(level(w, output, k) == 0);
        }
        CHECK(w.sums(output / 16)[output % 16] == sum);
        CHECK(largest == (output < outputs ? 127 : 0));
        if (output >= outputs)
            continue;
        w.row(output, row);
        for (std::size_t k = 0; k < inputs; ++k)
            CHECK(row[k] == static_cast<float>(level(w, output, k)) * w.scales(output / 16)[output % 16]);
    }
}

TEST_CASE("an output with a weight that is not finite has the scale NaN and no levels") {
    for (const float bad : {numbers::infinity, -numbers::infinity, numbers::not_a_number})
        for (std::size_t at = 0; at < 9; ++at) {
            kv::int8_matrix w(2, 9);
            auto weights = numbers::uniforms(3, 9);
            w.set_row(1, weights);
            const float scale = w.scales(0)[1];
            weights[at] = bad;
            w.set_row(0, weights);
            CHECK(std::isnan(w.scales(0)[0]));
            CHECK(w.sums(0)[0] == 0);
            for (std::size_t k = 0; k < 12; ++k)
                CHECK(level(w, 0, k) == 0);
            std::vector<float> back(9);
            w.row(0, back);
            CHECK(std::ranges::all_of(back, [](float x) { return std::isnan(x); }));
            CHECK(w.scales(0)[1] == scale);
        }
}

TEST_CASE("an output of zeros, or too small for a level, is zeros") {
    for (const float tiny : {0.0f, -0.0f, 0x1p-149f}) {
        kv::int8_matrix w(1, 5);
        w.set_row(0, std::vector<float>(5, tiny));
        std::vector<float> back(5, 1.0f);
        w.row(0, back);
        CHECK(std::ranges::count(back, 0.0f) == 5);
    }
}

TEST_CASE("what a caller does wrong with an int8 matrix is said") {
    kv::int8_matrix w(1, 30);
    std::vector<float> row(30), shorter(29);
    CHECK_THROWS_AS(w.set_row(1, row), kv::contract_violation);
    CHECK_THROWS_AS(w.set_row(0, shorter), kv::contract_violation);
    CHECK_THROWS_AS(w.row(0, shorter), kv::contract_violation);
    CHECK_THROWS_AS(kv::int8_matrix(1, kv::int8_matrix::most_inputs + 1), kv::contract_violation);
}
