// SPDX-License-Identifier: MIT
#include <kvcache/cache/any_kv_codec.hpp>
#include <kvcache/codec/codebook.hpp>
#include <kvcache/codec/residual_page.hpp>
#include <kvcache/testing/codec_conformance.hpp>

#include <algorithm>
#include <cstddef>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using side = kv::any_side_codec<>;

side named(const std::string& name) {
    const auto made = side::named(name);
    REQUIRE(made.has_value());
    return *made;
}

// The bytes of a page of random rows.
template <class Codec>
std::vector<std::byte> page_of(const Codec& codec, kv::page_shape shape) {
    const auto state = codec.open(shape);
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    std::vector<float> rows(kv::codec::residual_page::bytes_for(shape) / sizeof(float));
    for (float& number : rows)
        number = normal(random);
    std::vector<std::byte> made(state.page_bytes());
    for (std::uint32_t layer = 0; layer < shape.layers; ++layer)
        for (std::uint32_t head = 0; head < shape.kv_heads; ++head)
            state.encode(made, kv::layer_id{layer}, kv::head_id{head}, std::as_bytes(std::span(rows)));
    return made;
}

template <class Codec>
void same(const Codec& fixed, const std::string& keys, const std::string& values) {
    CAPTURE(keys, values);
    const kv::page_shape shape{.layers = 2, .kv_heads = 2, .head_dim = 32, .tokens = 32};
    const kv::any_kv_codec chosen{named(keys), named(values)};
    CHECK(chosen.open(shape).name() == fixed.open(shape).name());
    CHECK(page_of(chosen, shape) == page_of(fixed, shape));
}

} // namespace

TEST_CASE("codecs of keys and values that are chosen at run time have the pages and the names of the fixed ones") {
    using namespace kv::codec;
    same(bf16{}, "bf16", "bf16");
    same(f16{}, "f16", "f16");
    same(int8{}, "int8", "int8");
    same(int8_grouped{}, "int8_grouped", "int8_grouped");
    same(int4{}, "int4", "int4");
    same(int4_per_channel{}, "int4_per_channel", "int4_per_channel");
    same(hadamard<int8>{}, "hadamard_int8", "hadamard_int8");
    same(hadamard<int4>{}, "hadamard_int4", "hadamard_int4");
    same(codebook<5>{}, "codebook_5", "codebook_5");
    same(codebook<4>{}, "codebook_4", "codebook_4");
    same(codebook<3>{}, "codebook_3", "codebook_3");
    same(codebook<2>{}, "codebook_2", "codebook_2");
    same(delta<3>{}, "delta_3", "delta_3");
    same(mixed_kv<delta<3>, codebook<3>>{}, "delta_3", "codebook_3");
    same(mixed_kv<int8, int4>{}, "int8", "int4");
    same(mixed_kv<int4_per_channel, hadamard<int4>>{}, "int4_per_channel", "hadamard_int4");
}

TEST_CASE("pairs of named codecs pass the conformance tests") {
    // As tests/testing/codec_conformance.test.cpp has them for each codec.
    const std::map<std::string, double> tolerance{{"f32", 0.0},
                                                  {"bf16", 0.002},
                                                  {"f16", 0.0003},
                                                  {"int8", 0.006},
                                                  {"int8_grouped", 0.006},
                                                  {"int4", 0.085},
                                                  {"int4_per_channel", 0.07},
                                                  {"hadamard_int8", 0.012},
                                                  {"hadamard_int4", 0.1},
                                                  {"codebook_5", 0.07},
                                                  {"codebook_4", 0.13},
                                                  {"codebook_3", 0.23},
                                                  {"codebook_2", 0.4},
                                                  // The deltas of independent rows are larger than the rows.
                                                  {"delta_4", 0.17},
                                                  {"delta_3", 0.33},
                                                  {"delta_2", 0.6}};
    for (const std::string& keys : side::names())
        for (const std::string& values : {std::string("f32"), std::string("int4"), keys}) {
            CAPTURE(keys, values);
            CHECK(kv::testing::codec_conformance(kv::any_kv_codec{named(keys), named(values)}, 1,
                                                 std::max(tolerance.at(keys), tolerance.at(values))) ==
                  kv::testing::violations{});
        }
}

TEST_CASE("one side in float32 gives back its rows bit for bit") {
    const kv::page_shape shape{.layers = 1, .kv_heads = 1, .head_dim = 16, .tokens = 16};
    const auto state = kv::any_kv_codec{named("f32"), named("int4")}.open(shape);
    std::vector<float> rows(2 * 256);
    for (std::size_t i = 0; i < rows.size(); ++i)
        rows[i] = 1.0f / static_cast<float>(i + 1);
    std::vector<std::byte> page(state.page_bytes());
    state.encode(page, {}, {}, std::as_bytes(std::span(rows)));
    std::vector<float> read(256);
    const float* const keys = state.keys(page, {}, read);
    CHECK(std::equal(keys, keys + 256, rows.begin()));
    CHECK(state.codes(page, {}).keys.format == kv::codec::quant_format::none);
    CHECK(state.codes(page, {}).values.format == kv::codec::quant_format::int4);
}

TEST_CASE("an unknown codec is refused with the names that there are") {
    const auto made = side::named("int5");
    REQUIRE_FALSE(made.has_value());
    CHECK(made.error().code == kv::error_code::not_found);
    CHECK(made.error().message ==
          "no codec is named \"int5\"; there are f32, bf16, f16, int8, int8_grouped, int4, int4_per_channel, "
          "hadamard_int8, hadamard_int4, codebook_5, codebook_4, codebook_3, codebook_2, delta_4, delta_3, delta_2");
}
