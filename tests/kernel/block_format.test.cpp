// SPDX-License-Identifier: MIT
#include <kvcache/kernel/block_format.hpp>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string_view>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("a block format is found by its type number, and no other number is one") {
    std::set<std::string_view> names;
    for (std::uint32_t number = 0; number < 1000; ++number) {
        const auto format = kv::block_format_of(number);
        const bool listed = std::ranges::any_of(
            kv::block_formats, [&](kv::block_format f) { return static_cast<std::uint32_t>(f) == number; });
        CHECK(format.has_value() == listed);
        if (format) {
            CHECK(static_cast<std::uint32_t>(*format) == number);
            CHECK(names.insert(kv::name_of(*format)).second);
        }
    }
    CHECK(names.size() == 16);
    CHECK_FALSE(kv::block_format_of(0xFFFFFFFF));
    CHECK_FALSE(kv::block_format_of(256)); // not cut to a byte
}

TEST_CASE("a block format has the sizes that GGUF gives it") {
    using enum kv::block_format;
    const auto bits = [](kv::block_format f) { // per weight
        return 8.0 * static_cast<double>(kv::shape_of(f).bytes) / static_cast<double>(kv::shape_of(f).weights);
    };
    CHECK(bits(f32) == 32);
    CHECK(bits(f16) == 16);
    CHECK(bits(bf16) == 16);
    CHECK(bits(q4_0) == 4.5);
    CHECK(bits(q4_1) == 5);
    CHECK(bits(q5_0) == 5.5);
    CHECK(bits(q5_1) == 6);
    CHECK(bits(q8_0) == 8.5);
    CHECK(bits(q2_k) == 2.625);
    CHECK(bits(q3_k) == 3.4375);
    CHECK(bits(q4_k) == 4.5);
    CHECK(bits(q5_k) == 5.5);
    CHECK(bits(q6_k) == 6.5625);
    CHECK(bits(iq4_nl) == 4.5);
    CHECK(bits(iq4_xs) == 4.25);
    CHECK(bits(mxfp4) == 4.25);
    for (const kv::block_format f : kv::block_formats)
        CHECK(kv::is_quantized(f) == (f != f32 && f != f16 && f != bf16));
}
