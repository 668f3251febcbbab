// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <bit>
#include <cmath>
#include <cstdint>

/// Portable double-precision elementary functions: the same bits with every compiler and C library, which libm does not
/// guarantee. Accurate to about 1e-15. Every product that feeds a sum is an explicit std::fma.
namespace kvcache { inline namespace KVCACHE_ABI { namespace portable_math {

/// Natural logarithm of a positive, finite, normal number.
[[nodiscard]] inline double log(double x) noexcept {
    constexpr double ln2_high = 0x1.62e42fefa39efp-1, ln2_low = 0x1.abc9e3b39803fp-56;
    const auto bits = std::bit_cast<std::uint64_t>(x);
    auto exponent = static_cast<double>(static_cast<int>((bits >> 52) & 0x7ff) - 1023);
    double m = std::bit_cast<double>((bits & 0xfffffffffffffu) | 0x3ff0000000000000u);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        exponent += 1.0;
    }
    // log m = 2 atanh(s), s = (m - 1) / (m + 1), |s| <= 0.1716: each term is 34 times smaller than the last.
    const double s = (m - 1.0) / (m + 1.0);
    const double s2 = s * s;
    double p = 1.0 / 25.0;
    for (int k = 23; k >= 1; k -= 2)
        p = std::fma(p, s2, 1.0 / k);
    const double mantissa = 2.0 * s * p;
    return std::fma(exponent, ln2_high, std::fma(exponent, ln2_low, mantissa));
}

/// e^x for |x| <= 700.
[[nodiscard]] inline double exp(double x) noexcept {
    constexpr double ln2_high = 0x1.62e42fefa39efp-1, ln2_low = 0x1.abc9e3b39803fp-56;
    const double n = std::nearbyint(x / ln2_high);
    const double r = std::fma(-n, ln2_low, std::fma(-n, ln2_high, x));
    double p = 1.0;
    for (int k = 18; k >= 1; --k)
        p = std::fma(p, r / k, 1.0);
    return p * std::bit_cast<double>((static_cast<std::uint64_t>(static_cast<std::int64_t>(n) + 1023)) << 52);
}

/// base^exponent for a positive base.
[[nodiscard]] inline double power(double base, double exponent) noexcept {
    return exp(exponent * log(base));
}

/// Sine and cosine of one angle.
struct sine_cosine {
    double sine = 0.0;
    double cosine = 1.0;
};

/// Sine and cosine, for |x| <= 2^30: reduced by pi/2 in three parts, then Taylor on |r| <= pi/4.
[[nodiscard]] inline sine_cosine sincos(double x) noexcept {
    constexpr double first = 0x1.921fb54442d18p+0, second = 0x1.1a62633145c07p-54, third = -0x1.f1976b7ed8fbcp-110;
    const double n = std::nearbyint(x * 0x1.45f306dc9c883p-1);
    double r = std::fma(-n, first, x);
    r = std::fma(-n, second, r);
    r = std::fma(-n, third, r);
    const double r2 = r * r;
    double s = 1.0, c = 1.0;
    for (int k = 18; k >= 2; k -= 2) {
        s = std::fma(s, -r2 / (k * (k + 1)), 1.0);
        c = std::fma(c, -r2 / (k * (k - 1)), 1.0);
    }
    s *= r;
    switch (static_cast<std::int64_t>(n) & 3) {
    case 0:
        return {s, c};
    case 1:
        return {c, -s};
    case 2:
        return {-s, -c};
    default:
        return {-c, s};
    }
}

}}} // namespace kvcache::portable_math
