// SPDX-License-Identifier: MIT
#include <kvcache/kernel/quant_block.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "kernel/blocks.hpp"
#include "kernel/numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

std::vector<float> dequantized(kv::block_format format, std::span<const std::byte> blocks) {
    const kv::block_shape shape = kv::shape_of(format);
    std::vector<float> out(blocks.size() / shape.bytes * shape.weights);
    kv::dequantize(format, blocks, out);
    return out;
}

// Bits [at, at + count) of a block, as a number.
int bits(std::span<const std::byte> block, std::size_t at, std::size_t count) {
    int made = 0;
    for (std::size_t i = 0; i < count; ++i)
        made |= (std::to_integer<int>(block[(at + i) / 8]) >> ((at + i) % 8) & 1) << i;
    return made;
}
double half_number(std::span<const std::byte> block, std::size_t byte) {
    const int fraction = bits(block, byte * 8, 10), exponent = bits(block, byte * 8 + 10, 5);
    const double size = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    return bits(block, byte * 8 + 15, 1) != 0 ? -size : size;
}
// Scale and offset `g` of the 12 bytes of Q4_K and Q5_K, at byte 4.
int six_bits(std::span<const std::byte> block, std::size_t g, std::size_t of) {
    return g < 4 ? bits(block, (4 + of * 4 + g) * 8, 6)
                 : bits(block, (12 + g - 4) * 8 + of * 4, 4) | bits(block, (4 + of * 4 + g - 4) * 8 + 6, 2) << 4;
}

constexpr int iq4[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr double e2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

// Weight i of a block with finite scales, in double precision from the layout of the format.
double weight(kv::block_format format, std::span<const std::byte> b, std::size_t i) {
    using enum kv::block_format;
    const auto nibble = [&](std::size_t byte) { return bits(b, (byte + i % 16) * 8 + i / 16 * 4, 4); };
    const std::size_t part = i / 128, in_part = i % 128; // halves of a block of 256
    switch (format) {
    case q4_0:
        return half_number(b, 0) * (nibble(2) - 8);
    case q4_1:
        return half_number(b, 0) * nibble(4) + half_number(b, 2);
    case q5_0:
        return half_number(b, 0) * ((nibble(6) | bits(b, 16 + i, 1) << 4) - 16);
    case q5_1:
        return half_number(b, 0) * (nibble(8) | bits(b, 32 + i, 1) << 4) + half_number(b, 2);
    case q8_0:
        return half_number(b, 0) * (bits(b, 16 + i * 8, 8) - 256 * bits(b, 16 + i * 8 + 7, 1));
    case iq4_nl:
        return half_number(b, 0) * iq4[nibble(2)];
    case mxfp4:
        return std::ldexp(e2m1[nibble(1) & 7], bits(b, 0, 8) - 127) * (nibble(1) > 7 ? -1 : 1);
    case q2_k:
        return half_number(b, 80) * bits(b, i / 16 * 8, 4) *
                   bits(b, (16 + part * 32 + i % 32) * 8 + in_part / 32 * 2, 2) -
               half_number(b, 82) * bits(b, i / 16 * 8 + 4, 4);
    case q3_k: {
        const std::size_t g = i / 16;
        const int scale = bits(b, (96 + g % 8) * 8 + g / 8 * 4, 4) | bits(b, (104 + g % 4) * 8 + g / 4 * 2, 2) << 4;
        const int code = bits(b, (32 + part * 32 + i % 32) * 8 + in_part / 32 * 2, 2);
        return half_number(b, 108) * (scale - 32) * (bits(b, i % 32 * 8 + i / 32, 1) != 0 ? code : code - 4);
    }
    case q4_k:
    case q5_k: {
        const std::size_t g = i / 32, low = format == q4_k ? 16 : 48;
        const int high = format == q4_k ? 0 : bits(b, (16 + i % 32) * 8 + g, 1) << 4;
        const int code = bits(b, (low + i / 64 * 32 + i % 32) * 8 + g % 2 * 4, 4) | high;
        return half_number(b, 0) * six_bits(b, g, 0) * code - half_number(b, 2) * six_bits(b, g, 1);
    }
    case q6_k: {
        const int low = bits(b, (part * 64 + i % 64) * 8 + in_part / 64 * 4, 4);
        const int high = bits(b, (128 + part * 32 + i % 32) * 8 + in_part / 32 * 2, 2);
        const int scale = bits(b, (192 + i / 16) * 8, 8) - 256 * bits(b, (192 + i / 16) * 8 + 7, 1);
        return half_number(b, 208) * scale * ((low | high << 4) - 32);
    }
    case iq4_xs: {
        const std::size_t g = i / 32;
        const int scale = bits(b, 32 + g * 4, 4) | bits(b, 16 + g * 2, 2) << 4;
        return half_number(b, 0) * (scale - 32) * iq4[bits(b, (8 + g * 16 + i % 16) * 8 + i % 32 / 16 * 4, 4)];
    }
    default:
        return 0;
    }
}

} // namespace

TEST_CASE("a dequantised weight is the number of the format, rounded once") {
    for (const kv::block_format format : blocks::quantized()) {
        CAPTURE(kv::name_of(format));
        const kv::block_shape shape = kv::shape_of(format);
        for (const bool usual : {false, true}) {
            auto all = usual ? blocks::usual(format, 300, 7) : blocks::random(format, 300);
            for (std::size_t n = 0; n < 300; ++n) {
                const auto block = std::span(all).subspan(n * shape.bytes, shape.bytes);
                for (const auto at : {blocks::fields_of(format).scale, blocks::fields_of(format).offset})
                    if (at)
                        block[*at + 1] &= std::byte{0xbf}; // an exponent of at most 15: finite
                const auto out = dequantized(format, block);
                for (std::size_t i = 0; i < shape.weights; ++i)
                    if (out[i] != static_cast<float>(weight(format, block, i)))
                        FAIL(kv::name_of(format) << " block " << n << " weight " << i << ": " << out[i]);
            }
        }
        SUCCEED();
    }
}

TEST_CASE("dequantised blocks are those of GGUF's reference, bit for bit, with any scale") {
    struct digest_of {
        kv::block_format format;
        std::uint64_t digest;
    };
    static constexpr digest_of table[] = {
        // printed by gguf_blocks.py
        {kv::block_format::q4_0, 0x725097e771925cbc},   {kv::block_format::q4_1, 0x568527aa9effa14d},
        {kv::block_format::q5_0, 0x2f4e5c2e9ed1f98c},   {kv::block_format::q5_1, 0x2e6d57f9e9f3a55c},
        {kv::block_format::q8_0, 0x86366b167cf6513c},   {kv::block_format::q2_k, 0x1499c8fae8aa8354},
        {kv::block_format::q3_k, 0xfbfedae8489b14e8},   {kv::block_format::q4_k, 0xbf8906bc7d081daf},
        {kv::block_format::q5_k, 0x1c1ac0c6f16f3763},   {kv::block_format::q6_k, 0xce7e8d1cc7faa438},
        {kv::block_format::iq4_nl, 0x9ab5a5536f9edc7d}, {kv::block_format::iq4_xs, 0x262ac577058b3467},
        {kv::block_format::mxfp4, 0xf66127000eb7d2cf},
    };
    for (const auto& [format, digest] : table) {
        CAPTURE(kv::name_of(format));
        const auto out = dequantized(format, blocks::extreme(format));
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < out.size(); ++i)
            sum += numbers::hashed(std::isnan(out[i]) ? 0x7FC00000u : std::bit_cast<std::uint32_t>(out[i]), i);
        CHECK(sum == digest);
    }
}

TEST_CASE("blocks of the float formats widen exactly") {
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
        const std::vector<std::byte> two = {static_cast<std::byte>(bits & 255u), static_cast<std::byte>(bits >> 8)};
        const float as_half = kv::widen(kv::half{static_cast<std::uint16_t>(bits)});
        const float as_bfloat = kv::widen(kv::bfloat16{static_cast<std::uint16_t>(bits)});
        REQUIRE(numbers::same_bits(dequantized(kv::block_format::f16, two)[0], as_half));
        REQUIRE(numbers::same_bits(dequantized(kv::block_format::bf16, two)[0], as_bfloat));
    }
    const auto numbers = numbers::uniforms(5, 100);
    CHECK(numbers::same_bits(dequantized(kv::block_format::f32, std::as_bytes(std::span(numbers))), numbers));
}

TEST_CASE("blocks that do not match their weights are contract violations") {
    const std::vector<std::byte> blocks(36);
    std::vector<float> out(64);
    kv::dequantize(kv::block_format::q4_0, blocks, out);
    CHECK_THROWS_AS(kv::dequantize(kv::block_format::q4_0, std::span(blocks).first(35), out), kv::contract_violation);
    CHECK_THROWS_AS(kv::dequantize(kv::block_format::q4_0, blocks, std::span(out).first(63)), kv::contract_violation);
    CHECK_THROWS_AS(kv::dequantize(kv::block_format::q8_0, blocks, out), kv::contract_violation);
}

TEST_CASE("a row rounds to Q8_0: no weight is further than half a scale away, and the largest has a level of 127") {
    std::vector<float> row = numbers::uniforms(11, 32 * 64, 2.0f);
    for (std::size_t block = 0; block < 64; ++block) // down to scales that binary16 has few numbers for, and to zero
        for (std::size_t i = 0; i < 32; ++i)
            row[block * 32 + i] = block == 63 ? -0.0f : std::ldexp(row[block * 32 + i], 16 - static_cast<int>(block));
    std::vector<std::byte> stored(64 * 34);
    kv::quantize_q8_0(row, stored);
    const std::vector<float> again = dequantized(kv::block_format::q8_0, stored);
    for (std::size_t block = 0; block < 64; ++block) {
        const std::span<const std::byte> of = std::span(stored).subspan(block * 34, 34);
        const double scale = half_number(of, 0);
        double most = 0.0;
        int top = 0;
        for (std::size_t i = 0; i < 32; ++i) {
            const double weight = row[block * 32 + i];
            INFO("block " << block << ", weight " << weight << ", scale " << scale);
            CHECK(std::fabs(weight - double{again[block * 32 + i]}) <=
                  (scale > 0.0 ? scale / 2 : std::ldexp(127.0, -25)));
            most = std::max(most, std::fabs(weight));
            top = std::max(top, std::abs(static_cast<int>(static_cast<std::int8_t>(of[2 + i]))));
        }
        if (scale >= std::ldexp(1.0, -14)) { // a normal number
            CHECK(top == 127);
            CHECK(scale == Approx(most / 127).epsilon(0.001));
        }
    }
}

TEST_CASE("what is a level of Q8_0 is stored again as it was") {
    std::vector<std::byte> stored(256 * 34), again(256 * 34);
    for (std::size_t block = 0; block < 256; ++block) {
        const kv::half scale{static_cast<std::uint16_t>(0x0400 + block * 97)};
        std::memcpy(stored.data() + block * 34, &scale.bits, 2);
        for (std::size_t i = 0; i < 32; ++i)
            stored[block * 34 + 2 + i] =
                static_cast<std::byte>(i == block % 32 ? 127 : numbers::hashed(block, i) % 255 - 127);
    }
    kv::quantize_q8_0(dequantized(kv::block_format::q8_0, stored), again);
    CHECK(again == stored);
}

TEST_CASE("a block of Q8_0 with a weight that it cannot have is not a number, and its neighbours are") {
    const float huge = 127.6f * 65504.0f;
    for (const float wrong : {HUGE_VALF, -HUGE_VALF, std::nanf(""), huge, -huge}) {
        std::vector<float> row(96, 1.0f);
        row[40] = wrong;
        std::vector<std::byte> stored(3 * 34);
        kv::quantize_q8_0(row, stored);
        const std::vector<float> again = dequantized(kv::block_format::q8_0, stored);
        for (std::size_t i = 0; i < row.size(); ++i) {
            INFO(wrong << " at 40, weight " << i);
            CHECK(std::isnan(again[i]) == (i / 32 == 1));
        }
    }
}
