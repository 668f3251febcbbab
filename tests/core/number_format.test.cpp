// SPDX-License-Identifier: MIT
#include <kvcache/core/number_format.hpp>
#include <kvcache/core/platform/standard.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include <catch2/catch.hpp>

namespace kv = kvcache;

TEST_CASE("all 65536 binary16 patterns widen to the number they stand for") {
    std::size_t wrong = 0;
    for (std::uint32_t bits = 0; bits != 65536; ++bits) {
        const int exponent = static_cast<int>(bits >> 10 & 31);
        const double fraction = bits & 1023;
        const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
        const float got = kv::widen(kv::half{static_cast<std::uint16_t>(bits)});
        if (std::signbit(got) != (sign < 0)) {
            ++wrong;
        } else if (exponent == 31 && fraction != 0) { // NaN: quiet, its payload in the upper bits
            wrong += !(std::isnan(got) &&
                       (kvcache::bit_cast<std::uint32_t>(got) & 0x7FFFFF) == ((bits & 1023) << 13 | 0x400000));
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
    for (std::uint32_t bits = 0; bits != 65536; ++bits) {
        const auto got = kvcache::bit_cast<std::uint32_t>(kv::widen(kv::bfloat16{static_cast<std::uint16_t>(bits)}));
        std::uint32_t may_differ = 0;
#if defined(__i386__) // a function returns floats in the x87 unit, which makes every NaN quiet
        may_differ = (bits & 0x7FFFu) > 0x7F80u ? 0x400000u : 0;
#endif
        wrong += (got | may_differ) != (bits << 16 | may_differ);
    }
    CHECK(wrong == 0);
}

TEST_CASE("every binary16 and bfloat16 narrows back to itself, and what lies between to the nearer one") {
    std::size_t wrong = 0;
    for (std::uint32_t bits = 0; bits != 65536; ++bits) {
        const kv::half small{static_cast<std::uint16_t>(bits)};
        const kv::bfloat16 brain{static_cast<std::uint16_t>(bits)};
        if (std::isfinite(kv::widen(small)))
            wrong += kv::to_half(kv::widen(small)) != small;
        if (std::isfinite(kv::widen(brain)))
            wrong += kv::to_bfloat16(kv::widen(brain)) != brain;
        wrong += std::isnan(kv::widen(small)) != std::isnan(kv::widen(kv::to_half(kv::widen(small))));
        wrong += std::isnan(kv::widen(brain)) != std::isnan(kv::widen(kv::to_bfloat16(kv::widen(brain))));
        if ((bits & 0x7FFF) < 0x7BFF) { // and its neighbour away from zero
            const kv::half next{static_cast<std::uint16_t>(bits + 1)};
            const float middle = (kv::widen(small) + kv::widen(next)) * 0.5f;
            wrong += kv::to_half(middle) != (bits % 2 == 0 ? small : next);
            wrong += kv::to_half(std::nextafter(middle, kv::widen(small))) != small;
            wrong += kv::to_half(std::nextafter(middle, kv::widen(next))) != next;
        }
        if ((bits & 0x7FFF) < 0x7F7F) {
            const kv::bfloat16 next{static_cast<std::uint16_t>(bits + 1)};
            const float middle = kvcache::bit_cast<float>(bits << 16 | 0x8000u);
            wrong += kv::to_bfloat16(middle) != (bits % 2 == 0 ? brain : next);
            wrong += kv::to_bfloat16(kvcache::bit_cast<float>(bits << 16 | 0x7FFFu)) != brain;
            wrong += kv::to_bfloat16(kvcache::bit_cast<float>(bits << 16 | 0x8001u)) != next;
        }
    }
    CHECK(wrong == 0);
    CHECK(kv::widen(kv::to_half(1e30f)) == 65504.0f);
    CHECK(kv::widen(kv::to_half(-std::numeric_limits<float>::infinity())) == -65504.0f);
    CHECK(std::isfinite(kv::widen(kv::to_bfloat16(std::numeric_limits<float>::max()))));
}

TEST_CASE("a number is narrowed to the format that is named") {
    CHECK(kv::narrow<float>(0.1f) == 0.1f);
    CHECK(kv::narrow<kv::half>(0.1f) == kv::to_half(0.1f));
    CHECK(kv::narrow<kv::bfloat16>(0.1f) == kv::to_bfloat16(0.1f));
    CHECK(kv::format_name<float> == std::string("f32"));
    CHECK(kv::format_name<kv::half> == std::string("f16"));
    CHECK(kv::format_name<kv::bfloat16> == std::string("bf16"));
}
