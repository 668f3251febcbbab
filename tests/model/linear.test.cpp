// SPDX-License-Identifier: MIT
#include <kvcache/core/shared_memory.hpp>
#include <kvcache/model/linear.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "kernel/blocks.hpp"
#include "kernel/numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

/// A stored matrix and its widened values. (outputs, inputs)
struct stored {
    std::size_t outputs, inputs;
    kv::dtype type;
    std::vector<std::byte> bytes;
    std::vector<float> wide;

    stored(std::size_t n, std::size_t k, kv::dtype type_, std::uint64_t seed)
        : outputs(n), inputs(k), type(type_), bytes(n * k * kv::bytes_of(type_)) {
        for (std::size_t i = 0; i < n * k; ++i) {
            const auto hash = static_cast<std::uint32_t>(numbers::hashed(seed, i));
            // Bounded values of either sign: exponents of 2^-3 to 1, random fractions.
            const std::uint32_t bits = type == kv::dtype::f32    ? (hash & 0x81ffffff) + 0x3d000000
                                       : type == kv::dtype::bf16 ? (hash & 0x81ff) + 0x3d00
                                                                 : (hash & 0x8fff) + 0x2c00;
            std::memcpy(bytes.data() + i * kv::bytes_of(type), &bits, kv::bytes_of(type));
        }
        wide.resize(n * k);
        view().read(0, wide);
    }

    [[nodiscard]] kv::tensor_view view() const { return {type, {outputs, inputs}, bytes}; }
    [[nodiscard]] kv::tensor_view widened() const {
        return {kv::dtype::f32, {outputs, inputs}, std::as_bytes(std::span(wide))};
    }
};

std::vector<float> applied(const kv::linear& map, std::size_t rows) {
    kv::thread_pool alone;
    const auto x = numbers::uniforms(5, rows * map.inputs());
    std::vector<float> y(rows * map.outputs());
    kv::int8_block_rows scratch;
    map.apply({x.data(), rows, map.inputs()}, {y.data(), map.outputs()}, alone, scratch);
    return y;
}

} // namespace

TEST_CASE("a linear map keeps the format its weights are stored in, and the bits of their product") {
    const struct {
        kv::dtype type;
        const char* name;
        std::size_t bytes;
    } formats[] = {{kv::dtype::f32, "f32", 4}, {kv::dtype::bf16, "bf16", 2}, {kv::dtype::f16, "f16", 2}};
    for (const auto& [type, name, bytes] : formats) {
        INFO(name);
        const stored upper(40, 21, type, 1), lower(30, 21, type, 2);
        const std::array parts{upper.view(), lower.view()}, wide{upper.widened(), lower.widened()};
        const kv::linear map = kv::linear::pack(parts), reference = kv::linear::pack(wide);
        CHECK(map.format() == std::string(name));
        CHECK(map.outputs() == 70);
        CHECK(map.inputs() == 21);
        CHECK(map.bytes() == 5 * 16 * 21 * bytes);
        CHECK(numbers::same_bits(applied(map, 5), applied(reference, 5)));
        std::vector<float> row(21);
        map.row(41, row);
        CHECK(numbers::same_bits(row, {lower.wide.data() + 21, 21}));
    }
}

TEST_CASE("parts of different formats become one map in float32") {
    const stored upper(40, 21, kv::dtype::bf16, 1), lower(30, 21, kv::dtype::f16, 2);
    const std::array parts{upper.view(), lower.view()}, wide{upper.widened(), lower.widened()};
    const kv::linear map = kv::linear::pack(parts);
    CHECK(map.format() == std::string("f32"));
    CHECK(numbers::same_bits(applied(map, 3), applied(kv::linear::pack(wide), 3)));
}

TEST_CASE("matrices in quantised blocks stay in them, and have the bits of the product of their weights") {
    using enum kv::block_format;
    for (const auto& [upper_format, lower_format, name] :
         {std::tuple{q4_1, q4_1, "Q4_1"}, std::tuple{q4_k, q6_k, "Q4_K+Q6_K"}, std::tuple{q8_0, mxfp4, "Q8_0+MXFP4"}}) {
        INFO(name);
        constexpr std::size_t inputs = 256;
        const auto upper_bytes = blocks::usual(upper_format, 40 * inputs / kv::shape_of(upper_format).weights, 1);
        const auto lower_bytes = blocks::usual(lower_format, 30 * inputs / kv::shape_of(lower_format).weights, 2);
        const std::array parts{kv::tensor_view{kv::dtype::f32, {40, inputs}, upper_bytes, upper_format, 8},
                               kv::tensor_view{kv::dtype::f32, {30, inputs}, lower_bytes, lower_format}};
        std::vector<float> wide(70 * inputs), row(inputs);
        parts[0].read(0, std::span(wide).first(40 * inputs));
        parts[1].read(0, std::span(wide).subspan(40 * inputs));
        const std::array widened{kv::tensor_view{kv::dtype::f32, {70, inputs}, std::as_bytes(std::span(wide))}};
        kv::linear map = kv::linear::pack(parts), reference = kv::linear::pack(widened);
        CHECK(map.format() == name);
        CHECK(map.outputs() == 70);
        CHECK(map.inputs() == inputs);
        CHECK(map.bytes() < reference.bytes() / 3);
        CHECK_FALSE(map.has_int8_activations());
        map.set_bias(numbers::uniforms(3, 70));
        reference.set_bias(numbers::uniforms(3, 70));
        for (const std::size_t rows : {1u, 5u, 20u})
            CHECK(numbers::same_bits(applied(map, rows), applied(reference, rows)));
        map.row(41, row);
        CHECK(numbers::same_bits(row, std::span(wide).subspan(41 * inputs, inputs)));

        kv::thread_pool two(2);
        CHECK(map.int8_bytes() == 0);
        const kv::linear rounded = map.in_int8(two);
        CHECK(rounded.has_int8_activations());
        CHECK(rounded.format() == name);
        const auto exact = applied(map, 5), near = applied(rounded, 5);
        CHECK_FALSE(numbers::same_bits(exact, near));
        float error = 0.0f, size = 0.0f;
        for (std::size_t i = 0; i < exact.size(); ++i) {
            error = std::max(error, std::fabs(exact[i] - near[i]));
            size = std::max(size, std::fabs(exact[i]));
        }
        CHECK(error < size / 50);
    }
}

TEST_CASE("a matrix in blocks below one of numbers becomes float32") {
    const stored upper(32, 64, kv::dtype::bf16, 1);
    const auto bytes = blocks::usual(kv::block_format::q8_0, 30 * 2, 2);
    const std::array parts{upper.view(), kv::tensor_view{kv::dtype::f32, {30, 64}, bytes, kv::block_format::q8_0}};
    std::vector<float> wide(upper.wide);
    wide.resize(62 * 64);
    parts[1].read(0, std::span(wide).subspan(32 * 64));
    const std::array widened{kv::tensor_view{kv::dtype::f32, {62, 64}, std::as_bytes(std::span(wide))}};
    const kv::linear map = kv::linear::pack(parts);
    CHECK(map.format() == std::string("f32"));
    CHECK(numbers::same_bits(applied(map, 3), applied(kv::linear::pack(widened), 3)));
}

TEST_CASE("an int8 linear map is the same in its own memory and in a mapped image, which it keeps alive, and copies "
          "share it") {
    kv::thread_pool two(2);
    const stored weights(70, 96, kv::dtype::f32, 1);
    const std::array parts{weights.view()};
    kv::linear map = kv::linear::pack(parts);
    map.set_bias(numbers::uniforms(3, 70));
    const std::size_t bytes = map.int8_bytes();
    auto memory = kv::shared_memory(2 * bytes, nullptr);
    std::memset(memory.get(), 0x5a, 2 * bytes);
    const std::weak_ptr<std::byte> held = memory;

    const kv::linear alone = map.in_int8(two);
    kv::linear beside = map.in_int8(two, {memory, memory.get() + bytes});
    CHECK(memory.get()[bytes - 1] == std::byte{0x5a});
    memory.reset();
    CHECK(beside.format() == std::string("Q8_0"));
    CHECK(beside.bytes() <= bytes);
    CHECK(beside.bytes() + kv::line_bytes > bytes);
    for (const std::size_t rows : {1u, 5u, 20u})
        CHECK(numbers::same_bits(applied(alone, rows), applied(beside, rows)));
    kv::linear copy = beside;
    beside = {};
    CHECK(numbers::same_bits(applied(alone, 5), applied(copy, 5)));
    CHECK_FALSE(held.expired());
    copy = {};
    CHECK(held.expired());
}

TEST_CASE("numbers become Q8_0 in int8: the same map as blocks that were stored so") {
    kv::thread_pool two(2);
    for (const kv::dtype type : {kv::dtype::f32, kv::dtype::bf16, kv::dtype::f16}) {
        const stored weights(70, 96, type, 1);
        std::vector<std::byte> bytes(70 * 3 * 34);
        kv::quantize_q8_0(weights.wide, bytes);
        const std::array plain{weights.view()};
        const std::array blocks{kv::tensor_view{kv::dtype::f32, {70, 96}, bytes, kv::block_format::q8_0}};
        const kv::linear map = kv::linear::pack(plain).in_int8(two);
        const kv::linear want = kv::linear::pack(blocks).in_int8(two);
        CHECK(map.has_int8_activations());
        for (const std::size_t rows : {1u, 5u, 20u})
            CHECK(numbers::same_bits(applied(map, rows), applied(want, rows)));
    }
}

TEST_CASE("a map whose rows are not whole blocks stays exact in int8") {
    kv::thread_pool two(2);
    const stored weights(70, 40, kv::dtype::bf16, 1);
    const std::array parts{weights.view()};
    const kv::linear map = kv::linear::pack(parts), same = map.in_int8(two);
    CHECK(map.int8_bytes() == 0);
    CHECK_FALSE(same.has_int8_activations());
    CHECK(same.format() == std::string("bf16"));
    CHECK(numbers::same_bits(applied(map, 5), applied(same, 5)));
}
