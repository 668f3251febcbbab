// SPDX-License-Identifier: MIT
#include "../../examples/support/codec_flag.hpp"

#include <string>
#include <type_traits>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

std::string pair_of(const char* text) {
    const auto read = support::read_codec(text);
    return read ? read->keys.name() + " " + read->values.name() : read.error().message;
}

} // namespace

TEST_CASE("a codec flag names both sides at once, or each by itself") {
    CHECK(pair_of("int8") == "int8 int8");
    CHECK(pair_of("k=int8,v=int4") == "int8 int4");
    CHECK(pair_of("v=int4,k=hadamard_int4") == "hadamard_int4 int4");
    CHECK(pair_of("v=codebook_3") == "f32 codebook_3");
    CHECK(pair_of("k=bf16") == "bf16 f32");
}

TEST_CASE("a codec flag of another form is refused in words") {
    for (const char* text : {"k=int8,k=int4", "k=int8,int4", "k=int8,", ",v=int8", "keys=int8", "=", "k =int8"}) {
        CAPTURE(text);
        CHECK(pair_of(text) == "a codec is NAME, or k=NAME,v=NAME; \"" + std::string(text) + "\" is neither");
    }
    for (const char* text : {"", "int5", "INT8", "int8,int4", "k=,v=int8", "v=int5", "k=v=int8"}) {
        CAPTURE(text);
        CHECK(pair_of(text).find("no codec is named") != std::string::npos);
        CHECK(pair_of(text).find("there are " + support::codec_names()) != std::string::npos);
    }
}

TEST_CASE("a codec flag gives the codec of float32 rows for f32, and one codec type for every other") {
    const auto kind = [](const char* text, std::uint32_t tokens) {
        std::string found;
        const int code = support::with_codec(
            text, {.layers = 1, .kv_heads = 1, .head_dim = 64, .tokens = tokens},
            [&](const auto& codec) {
                found = std::is_same_v<std::decay_t<decltype(codec)>, kv::codec::f32> ? "rows" : "pages";
                return 0;
            },
            [&](const kv::error& fault) {
                found = fault.message;
                return 1;
            });
        CHECK((code == 0) == (found == "rows" || found == "pages"));
        return found;
    };
    CHECK(kind("f32", 16) == "rows");
    CHECK(kind("k=f32", 16) == "rows");
    CHECK(kind("k=f32,v=int8", 16) == "pages");
    CHECK(kind("int4_per_channel", 32) == "pages");
    CHECK(kind("v=int4_per_channel", 16) == "--page: int4_per_channel takes a multiple of 32 tokens, not 16");
}
