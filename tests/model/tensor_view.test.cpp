// SPDX-License-Identifier: MIT
#include <kvcache/model/tensor_view.hpp>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("all 65536 binary16 patterns widen to the number they stand for") {
    std::size_t wrong = 0;
    for (std::uint32_t bits = 0; bits != 65536; ++bits) {
        const int exponent = static_cast<int>(bits >> 10 & 31);
        const double fraction = bits & 1023;
        const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
        const float got = kv::widen_f16(static_cast<std::uint16_t>(bits));
        if (std::signbit(got) != (sign < 0)) {
            ++wrong;
        } else if (exponent == 31 && fraction != 0) { // NaN, its payload kept in the upper bits
            wrong += !(std::isnan(got) && (std::bit_cast<std::uint32_t>(got) & 0x7FFFFF) == (bits & 1023) << 13);
        } else if (exponent == 31) {
            wrong += got != static_cast<float>(sign) * std::numeric_limits<float>::infinity();
        } else {
            const double value = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
            wrong += static_cast<double>(got) != sign * value;
        }
    }
    CHECK(wrong == 0);
}

TEST_CASE("all 65536 bfloat16 patterns widen to a float with their bits on top") {
    std::size_t wrong = 0;
    for (std::uint32_t bits = 0; bits != 65536; ++bits)
        wrong += std::bit_cast<std::uint32_t>(kv::widen_bf16(static_cast<std::uint16_t>(bits))) != bits << 16;
    CHECK(wrong == 0);
}

TEST_CASE("a view reads its numbers from bytes that are not aligned") {
    // 1.5 and -2 in each format, behind one byte of something else.
    const std::array<unsigned char, 9> f32 = {0xFF, 0x00, 0x00, 0xC0, 0x3F, 0x00, 0x00, 0x00, 0xC0};
    const std::array<unsigned char, 5> f16 = {0xFF, 0x00, 0x3E, 0x00, 0xC0};
    const std::array<unsigned char, 5> bf16 = {0xFF, 0xC0, 0x3F, 0x00, 0xC0};
    const kv::tensor_view views[] = {
        {.dtype = kv::dtype::f32, .shape = {2}, .bytes = std::as_bytes(std::span(f32)).subspan(1)},
        {.dtype = kv::dtype::f16, .shape = {2}, .bytes = std::as_bytes(std::span(f16)).subspan(1)},
        {.dtype = kv::dtype::bf16, .shape = {1, 2}, .bytes = std::as_bytes(std::span(bf16)).subspan(1)},
    };
    for (const kv::tensor_view& view : views) {
        INFO(kv::name_of(view.dtype));
        CHECK(view.size() == 2);
        CHECK(view[0] == 1.5F);
        CHECK(view[1] == -2.0F);
        std::array<float, 2> all = {};
        view.read(0, all);
        CHECK(all == std::array{1.5F, -2.0F});
        std::array<float, 1> last = {};
        view.read(1, last);
        CHECK(last[0] == -2.0F);
        CHECK_THROWS_AS(view[2], kv::contract_violation);
        CHECK_THROWS_AS(view.read(1, all), kv::contract_violation);
    }
}
