// SPDX-License-Identifier: MIT
#include <kvcache/kernel/number_format.hpp>

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
        const float got = kv::widen(kv::half{static_cast<std::uint16_t>(bits)});
        if (std::signbit(got) != (sign < 0)) {
            ++wrong;
        } else if (exponent == 31 && fraction != 0) { // NaN: quiet, its payload in the upper bits
            wrong += !(std::isnan(got) &&
                       (std::bit_cast<std::uint32_t>(got) & 0x7FFFFF) == ((bits & 1023) << 13 | 0x400000));
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
        wrong += std::bit_cast<std::uint32_t>(kv::widen(kv::bfloat16{static_cast<std::uint16_t>(bits)})) != bits << 16;
    CHECK(wrong == 0);
}
