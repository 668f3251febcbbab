// SPDX-License-Identifier: MIT
#include <kvcache/kernel/block_matrix.hpp>

#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "kernel/block_problem.hpp"
#include "kernel/blocks.hpp"
#include "kernel/numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("a block matrix gives back the dequantised weights of each output, whatever the scales") {
    for (const kv::block_format format : blocks::quantized()) {
        CAPTURE(kv::name_of(format));
        const kv::block_shape shape = kv::shape_of(format);
        const auto bytes = blocks::extreme(format);
        const std::size_t outputs = 100, inputs = 49 * shape.weights;
        const blocks::problem p(kv::block_part{format, outputs}, inputs, bytes);
        std::vector<float> row(inputs);
        for (std::size_t output = 0; output < outputs; ++output) {
            p.matrix.row(output, row);
            for (std::size_t k = 0; k < inputs; ++k) {
                const float want = p.weights[output * inputs + k];
                if (!numbers::same_bits(row[k], want) && !(std::isnan(row[k]) && std::isnan(want)))
                    FAIL(kv::name_of(format) << " output " << output << " input " << k << ": " << row[k]);
            }
        }
        SUCCEED();
    }
}

TEST_CASE("the strips of a block matrix have panels of one part, and all outputs once") {
    using enum kv::block_format;
    const std::vector<kv::block_part> parts = {{q4_k, 100}, {q6_k, 17}, {q4_k, 5}, {q5_k, 48}};
    const blocks::problem p(parts, 512, 3);
    CHECK(p.matrix.outputs() == 170);
    CHECK(p.matrix.bytes() == kv::block_matrix::bytes_of(parts, 512));
    for (const std::size_t wide : {1u, 2u, 3u, 8u, 100u}) {
        std::size_t next = 0;
        for (std::size_t i = 0; i < p.matrix.strips(wide); ++i) {
            const kv::block_strip strip = p.matrix.strip(i, wide);
            CHECK(strip.first == next);
            CHECK(strip.panels == (strip.last - strip.first + 15) / 16);
            CHECK(strip.panels <= wide);
            CHECK(strip.panel_bytes == kv::panel_bytes(strip.format, 512));
            CHECK(strip.format == (next < 100 ? q4_k : next < 117 ? q6_k : next < 122 ? q4_k : q5_k));
            next = strip.last;
        }
        CHECK(next == 170);
    }
    std::vector<float> row(512);
    for (std::size_t output = 0; output < 170; ++output) {
        p.matrix.row(output, row);
        CHECK(numbers::same_bits(row, std::span(p.weights).subspan(output * 512, 512)));
    }
}

TEST_CASE("packed blocks take as many bytes as the file, or a few more for nested scales") {
    for (const kv::block_format format : blocks::quantized()) {
        CAPTURE(kv::name_of(format));
        const kv::block_shape shape = kv::shape_of(format);
        const double file = 16.0 * static_cast<double>(shape.bytes * 256 / shape.weights);
        CHECK(static_cast<double>(kv::panel_bytes(format, 256)) >= file);
        CHECK(static_cast<double>(kv::panel_bytes(format, 256)) <= file * 1.21); // Q2_K: 4 bits of scales become 8
    }
}

TEST_CASE("a caller's mistakes with a block matrix are contract violations") {
    const blocks::problem p({{kv::block_format::q4_k, 20}}, 256, 1);
    std::vector<float> row(256);
    CHECK_THROWS_AS(p.matrix.row(20, row), kv::contract_violation);
    CHECK_THROWS_AS(p.matrix.row(0, std::span(row).first(255)), kv::contract_violation);
    const std::vector<kv::block_part> parts = {{kv::block_format::q4_k, 20}}, floats = {{kv::block_format::f16, 20}};
    CHECK_THROWS_AS(kv::block_matrix(parts, 288, p.memory), kv::contract_violation);
    CHECK_THROWS_AS(kv::block_matrix(floats, 256, p.memory), kv::contract_violation);
    CHECK_THROWS_AS(kv::block_matrix(parts, 256, {p.memory, p.memory.get() + 4}), kv::contract_violation);
}
