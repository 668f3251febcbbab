// SPDX-License-Identifier: MIT
#include <kvcache/core/shared_memory.hpp>
#include <kvcache/kernel/int8_gemm.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "kernel/numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

// Level of an output's input, from its location in the panels.
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

TEST_CASE("an int8 matrix is stored in panels of 16 outputs and fours of inputs, with zeros after the last") {
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

TEST_CASE("a caller's mistakes with an int8 matrix are contract violations") {
    kv::int8_matrix w(1, 30);
    std::vector<float> row(30), shorter(29);
    CHECK_THROWS_AS(w.set_row(1, row), kv::contract_violation);
    CHECK_THROWS_AS(w.set_row(0, shorter), kv::contract_violation);
    CHECK_THROWS_AS(w.row(0, shorter), kv::contract_violation);
    CHECK_THROWS_AS(kv::int8_matrix(1, kv::int8_matrix::most_inputs + 1), kv::contract_violation);
    const auto memory = kv::shared_memory(kv::int8_matrix::bytes_of(1, 30) + 4, nullptr);
    CHECK_THROWS_AS(kv::int8_matrix(1, 30, {memory, memory.get() + 4}), kv::contract_violation);
}

TEST_CASE("int8 matrices lie side by side in memory that is given, write nothing else, and keep it") {
    constexpr std::size_t outputs = 35, inputs = 30;
    const std::size_t bytes = kv::int8_matrix::bytes_of(outputs, inputs);
    CHECK(bytes % kv::line_bytes == 0);
    auto memory = kv::shared_memory(3 * bytes, nullptr);
    std::byte* const begin = memory.get();
    std::fill_n(begin, 3 * bytes, std::byte{0x5a});
    std::vector<float> row(inputs), back(inputs);
    std::weak_ptr<std::byte> held = memory;
    {
        kv::int8_matrix w(outputs, inputs, {memory, begin + bytes});
        memory.reset();
        for (std::size_t output = 0; output < outputs; ++output)
            w.set_row(output, numbers::uniforms(output, inputs));
        CHECK(w.bytes() == bytes);
        CHECK(static_cast<const void*>(w.panel(0)) == begin + bytes);
        CHECK(reinterpret_cast<const std::byte*>(w.sums(0) + 48) == begin + 2 * bytes);
        const auto around = [&](std::size_t i) {
            return std::all_of(begin + i, begin + i + bytes, [](std::byte b) { return b == std::byte{0x5a}; });
        };
        CHECK(around(0));
        CHECK(around(2 * bytes));

        kv::int8_matrix own(outputs, inputs);
        const kv::int8_matrix copy = w;
        CHECK(copy.panel(1) == w.panel(1));
        for (std::size_t output = 0; output < outputs; ++output) {
            own.set_row(output, numbers::uniforms(output, inputs));
            own.row(output, row);
            copy.row(output, back);
            CHECK(row == back);
        }
        CHECK_FALSE(held.expired());
    }
    CHECK(held.expired());
}
