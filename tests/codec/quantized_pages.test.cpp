// SPDX-License-Identifier: MIT
#include <kvcache/codec/all.hpp>
#include <kvcache/codec/residual_page.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/core/platform/standard.hpp>

#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "kernel/numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

// A page of values in [-1, 1) that are the same in every build, with a large channel and a row of zeros.
template <kv::codec_policy Policy>
kv::aligned_vector<std::byte> quantized(const Policy& policy, kv::page_shape shape) {
    const auto state = policy.open(shape);
    kv::aligned_vector<std::byte> page(state.page_bytes());
    kv::codec::residual_page rows(shape);
    rows.begin(0);
    const std::size_t width = std::size_t{shape.kv_heads} * shape.head_dim;
    for (std::uint32_t layer = 0; layer < shape.layers; ++layer)
        for (std::uint32_t row = 0; row < shape.tokens; ++row) {
            auto keys = numbers::uniforms(layer * 1000 + row, width), values = numbers::uniforms(row * 7 + 3, width);
            for (std::size_t i = 3; i < width; i += shape.head_dim)
                keys[i] *= 16.0f;
            if (row == 5)
                std::fill(keys.begin(), keys.end(), 0.0f);
            rows.write(state, page, kv::layer_id{layer}, row, keys, values);
        }
    return page;
}

template <kv::codec_policy Policy>
std::string digest_of_page(const Policy& policy, kv::page_shape shape) {
    return kv::to_string(kv::digest_builder().bytes(quantized(policy, shape)).finish());
}

float number_at(std::span<const std::byte> page, std::size_t byte) {
    kv::half number;
    std::memcpy(&number, page.data() + byte, sizeof number);
    return kv::widen(number);
}

} // namespace

TEST_CASE("a page of int8 is fours of key numbers and of value tokens, and a scale a row") {
    const kv::page_shape shape{.layers = 1, .kv_heads = 2, .head_dim = 16, .tokens = 16};
    const auto page = quantized(kv::codec::int8{}, shape);
    REQUIRE(page.size() == 2 * 2 * (16 * 16 + 16 * 2));
    bool right = true;
    for (std::uint32_t row = 0; row < 16; ++row)
        for (std::size_t head = 0; head < 2; ++head) {
            auto keys = numbers::uniforms(row, 32), values = numbers::uniforms(row * 7 + 3, 32);
            keys[3] *= 16.0f;
            keys[19] *= 16.0f;
            if (row == 5)
                std::fill(keys.begin(), keys.end(), 0.0f);
            const std::size_t at = head * 2 * 288;
            for (std::size_t side = 0; side < 2; ++side) {
                const float* numbers = (side == 0 ? keys : values).data() + head * 16;
                float most = 0;
                for (std::size_t d = 0; d < 16; ++d)
                    most = std::max(most, std::abs(numbers[d]));
                const float scale = number_at(page, at + side * 288 + 256 + 2 * row);
                right = right && kvcache::bit_cast<std::uint32_t>(scale) ==
                                     kvcache::bit_cast<std::uint32_t>(kv::widen(kv::to_half(most / 127.0f)));
                for (std::size_t d = 0; d < 16; ++d) {
                    const std::size_t place = side == 0 ? d / 4 * 64 + row * 4 + d % 4 : row / 4 * 64 + d * 4 + row % 4;
                    const auto code = kvcache::bit_cast<std::int8_t>(page[at + side * 288 + place]);
                    right = right && std::abs(double{scale} * code - double{numbers[d]}) <= 0.51 * double{scale};
                }
            }
        }
    CHECK(right);
}

TEST_CASE("a page of int4 holds two fours in 64 bytes") {
    const kv::page_shape shape{.layers = 1, .kv_heads = 1, .head_dim = 32, .tokens = 16};
    const auto page = quantized(kv::codec::int4{}, shape);
    REQUIRE(page.size() == 2 * (16 * 32 / 2 + 16 * 2));
    bool right = true;
    for (std::uint32_t row = 0; row < 16; ++row) {
        auto keys = numbers::uniforms(row, 32), values = numbers::uniforms(row * 7 + 3, 32);
        keys[3] *= 16.0f;
        if (row == 5)
            std::fill(keys.begin(), keys.end(), 0.0f);
        for (std::size_t side = 0; side < 2; ++side)
            for (std::size_t d = 0; d < 32; ++d) {
                const float scale = number_at(page, side * 288 + 256 + 2 * row);
                const std::size_t four = side == 0 ? d / 4 : d / 16 * 4 + row / 4;
                const std::size_t byte = four / 2 * 64 + (side == 0 ? row * 4 + d % 4 : d % 16 * 4 + row % 4);
                const std::size_t shift = four % 2 * 4;
                const int code = std::to_integer<int>(page[side * 288 + byte]) >> shift & 15;
                const double number = (side == 0 ? keys : values)[d];
                right = right && std::abs(double{scale} * (code - 8) - number) <= 1.01 * std::abs(double{scale});
            }
    }
    CHECK(right);
}

TEST_CASE("every codec's page has the bytes it always had") {
    const kv::page_shape shape{.layers = 2, .kv_heads = 2, .head_dim = 48, .tokens = 64};
    CHECK(digest_of_page(kv::codec::bf16{}, shape) == "616d23314a8657f2513722ba6daa9dc7");
    CHECK(digest_of_page(kv::codec::f16{}, shape) == "df39fc76b2e513aa68563b972a74c738");
    CHECK(digest_of_page(kv::codec::int8{}, shape) == "b659c224477e39c155910ffe5945d291");
    CHECK(digest_of_page(kv::codec::int8_grouped{}, shape) == "aafc6bf313ca8e954c8963d2207dad6a");
    CHECK(digest_of_page(kv::codec::int4{}, shape) == "9703a7009f5ba2c11527d911b23174f9");
    CHECK(digest_of_page(kv::codec::int4_per_channel{}, shape) == "0f1c126ff8fa82331d5f1ecc92724477");
    CHECK(digest_of_page(kv::codec::hadamard<kv::codec::int4>{}, shape) == "2c26b37dddf20fa1ca89e7e12d11efd1");
    CHECK(digest_of_page(kv::codec::codebook<5>{}, shape) == "4ec6456d48215a1d210d711e3b8275de");
    CHECK(digest_of_page(kv::codec::codebook<4>{}, shape) == "1b303ff1259575027c6945aac62b1b81");
    CHECK(digest_of_page(kv::codec::codebook<3>{}, shape) == "144cec1b653df3e9ffb66eaeb21b87be");
    CHECK(digest_of_page(kv::codec::codebook<2>{}, shape) == "3633c7c5d9eaf2fcb8c9815ff04c4f30");
    CHECK(digest_of_page(kv::codec::delta<4>{}, shape) == "2457fe4cb4a2a01bcfebf28dd76c1d92");
    CHECK(digest_of_page(kv::codec::delta<3>{}, shape) == "d941c7aef1725d15dc3b407c55c1af3a");
    CHECK(digest_of_page(kv::codec::delta<3>{.group = 16}, shape) == "fde524701bab23e625be3f3c0b2e0b24");
    CHECK(digest_of_page(kv::codec::delta<2>{}, shape) == "b9e8a952d4363f49d5aeaac232015a13");
}

TEST_CASE("pages have the bits per number that their codecs state") {
    const kv::page_shape shape{.layers = 1, .kv_heads = 2, .head_dim = 128, .tokens = 64};
    const auto bits = [&](const auto& policy) {
        return static_cast<double>(policy.open(shape).page_bytes()) * 8 / (2.0 * 2 * 128 * 64);
    };
    CHECK(bits(kv::codec::bf16{}) == 16.0);
    CHECK(bits(kv::codec::f16{}) == 16.0);
    CHECK(bits(kv::codec::int8{}) == 8.125);
    CHECK(bits(kv::codec::int8_grouped{}) == 8.5);
    CHECK(bits(kv::codec::int4{}) == 4.5);
    CHECK(bits(kv::codec::int4_per_channel{}) == 5.0);
    CHECK(bits(kv::codec::hadamard<kv::codec::int4>{}) == 4.5);
    CHECK(bits(kv::codec::codebook<5>{}) == 5.125);
    CHECK(bits(kv::codec::codebook<4>{}) == 4.125);
    CHECK(bits(kv::codec::codebook<3>{}) == 3.125);
    CHECK(bits(kv::codec::codebook<2>{}) == 2.125);
    CHECK(bits(kv::codec::delta<4>{}) == 4.375);
    CHECK(bits(kv::codec::delta<3>{}) == 3.375);
    CHECK(bits(kv::codec::delta<3>{.group = 16}) == 4.125);
    CHECK(bits(kv::codec::delta<2>{}) == 2.375);
    CHECK(bits(kv::codec::mixed_kv<kv::codec::int4_per_channel, kv::codec::int4>{}) == 4.75);
}

TEST_CASE("values beyond a codec's range become the largest that it can encode, and stay finite") {
    const kv::page_shape shape{.layers = 1, .kv_heads = 1, .head_dim = 16, .tokens = 32};
    const auto decoded = [&](const auto& policy) {
        const auto state = policy.open(shape);
        kv::aligned_vector<std::byte> page(state.page_bytes());
        kv::codec::residual_page rows(shape);
        rows.begin(0);
        const std::vector<float> large(16, 1e37f), small(16, 1e-41f);
        for (std::uint32_t row = 0; row < 32; ++row)
            rows.write(state, page, kv::layer_id{0}, row, row % 2 == 0 ? large : small, small);
        std::vector<float> scratch(256);
        const float* keys = state.keys(page, {}, scratch);
        return std::vector<float>(keys, keys + 256);
    };
    const auto finite = [&](const auto& policy) {
        for (const float x : decoded(policy))
            if (!std::isfinite(x))
                return false;
        return true;
    };
    CHECK(finite(kv::codec::bf16{}));
    CHECK(finite(kv::codec::f16{}));
    CHECK(finite(kv::codec::int8{}));
    CHECK(finite(kv::codec::int4{}));
    CHECK(finite(kv::codec::int4_per_channel{}));
    CHECK(finite(kv::codec::codebook<4>{}));
    CHECK(finite(kv::codec::delta<3>{}));
}

TEST_CASE("a page that a codec's groups do not fill is a mistake") {
    const kv::page_shape shape{.layers = 1, .kv_heads = 1, .head_dim = 16, .tokens = 48};
    CHECK_THROWS_AS(kv::codec::int4_per_channel{}.open(shape), kv::contract_violation);
    CHECK_THROWS_AS(kv::codec::int8_grouped{.group = 24}.open(shape), kv::contract_violation);
    CHECK_THROWS_AS(kv::codec::delta<3>{.group = 32}.open(shape), kv::contract_violation);
    CHECK_THROWS_AS(kv::codec::delta<3>{.group = 24}.open(shape), kv::contract_violation);
}

TEMPLATE_LIST_TEST_CASE("the bytes of a page of any valid shape do not overflow", "", kv::codec_policies) {
    using shape = kv::page_shape;
    const auto bytes = [](const shape& of) { return TestType{}.open(of).page_bytes(); };
    for (std::uint32_t l = 0; l <= 16; l += 4)
        for (std::uint32_t h = 0; h <= 16; h += 4)
            for (std::uint32_t d = 0; d <= 14; d += 2)
                for (std::uint32_t t = 5; t <= 16; ++t) {
                    const shape of{1u << l, 1u << h, 1u << d, 1u << t};
                    if (!of.valid())
                        continue;
                    // By a page of one head and at most 64 tokens, in floating point, which does not overflow.
                    const std::uint32_t small = std::min(t, 6u);
                    const double expected = std::ldexp(static_cast<double>(bytes({1, 1, of.head_dim, 1u << small})),
                                                       static_cast<int>(l + h + t - small));
                    REQUIRE(static_cast<double>(bytes(of)) == expected);
                    REQUIRE(expected < std::ldexp(1.0, 56));
                }
}
