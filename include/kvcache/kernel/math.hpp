// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/kernel/simd.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

// e^x of each lane where its key is >= -87, zero elsewhere. Requires: x <= 88. Several vectors advance step by step
// together, since each is a chain of dependent operations.
template <std::size_t N>
KVCACHE_INLINE inline void exp_each(f32x16 (&x)[N], const f32x16 (&key)[N]) noexcept {
    const f32x16 magic = f32x16::broadcast(12582912.0f); // 1.5 * 2^23: adding it rounds to an integer
    f32x16 shifted[N], n[N], p[N];
    KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) {
        shifted[i] = fma(x[i], f32x16::broadcast(1.44269504088896341f), magic);
        n[i] = shifted[i] - magic;
    }
    // ln 2 in two parts, the first with trailing zeros, so that n * part is exact.
    KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) x[i] = fma(n[i], f32x16::broadcast(-0.693359375f), x[i]);
    KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) x[i] = fma(n[i], f32x16::broadcast(2.12194440e-4f), x[i]);
    // Taylor to degree 7 on |x| <= 0.3466: the next term is under 1e-9.
    KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) p[i] = f32x16::broadcast(1.0f / 5040.0f);
    const auto then = [&](float term) KVCACHE_INLINE {
        KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) p[i] = fma(p[i], x[i], f32x16::broadcast(term));
    };
    then(1.0f / 720.0f);
    then(1.0f / 120.0f);
    then(1.0f / 24.0f);
    then(1.0f / 6.0f);
    then(0.5f);
    then(1.0f);
    then(1.0f);
    KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) x[i] = scaled_above(p[i], n[i], shifted[i], key[i], -87.0f);
}

} // namespace detail

/// e^x, lane by lane, within 2 ulp; zero below -87 and for NaN, e^88 above 88. Cost: 10 fused operations. The same bits
/// on every target.
[[nodiscard]] inline f32x16 exp(const f32x16& x) noexcept {
    f32x16 clamped[] = {min(max(x, f32x16::broadcast(-87.0f)), f32x16::broadcast(88.0f))};
    detail::exp_each(clamped, {x});
    return clamped[0];
}

/// The same for several vectors of values <= 88, in place: the same bits in fewer operations.
template <std::size_t N>
KVCACHE_INLINE inline void exp_of_differences(f32x16 (&x)[N]) noexcept {
    f32x16 key[N];
    KVCACHE_UNROLL for (std::size_t i = 0; i < N; ++i) key[i] = x[i];
    detail::exp_each(x, key);
}

/// e^x of a scalar: lane 0 of the vector form, so that scalars and vectors agree.
[[nodiscard]] inline float exp_one(float x) noexcept {
    alignas(64) float lane[16];
    exp(f32x16::broadcast(x)).store(lane);
    return lane[0];
}

/// x / (1 + e^-x), lane by lane; inputs below -88 give the value at -88, about -5e-37.
[[nodiscard]] inline f32x16 silu(const f32x16& x) noexcept {
    // exp ends in an exact multiplication by a power of two: contracted into this sum or not, the bits are the same.
    return max(f32x16::broadcast(-88.0f), x) / (f32x16::broadcast(1.0f) + exp(-x));
}

/// GELU by tanh (Hendrycks & Gimpel 2016), lane by lane: x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
[[nodiscard]] inline f32x16 gelu(const f32x16& x) noexcept {
    constexpr float twice = 1.5957691216057308f; // 2 sqrt(2 / pi)
    const f32x16 inner = fma(f32x16::broadcast(0.044715f * twice), x * x, f32x16::broadcast(twice));
    return x / (f32x16::broadcast(1.0f) + exp(-max(f32x16::broadcast(-88.0f), inner * x)));
}

/// cap * tanh(x / cap), lane by lane, within 1e-7 of the cap.
[[nodiscard]] inline f32x16 soft_cap(const f32x16& x, float cap) noexcept {
    const f32x16 one = f32x16::broadcast(1.0f), twice = x * f32x16::broadcast(2.0f / cap);
    const f32x16 tangent = f32x16::broadcast(2.0f) / (one + exp(-max(f32x16::broadcast(-88.0f), twice))) - one;
    return tangent * f32x16::broadcast(cap);
}

namespace detail {

/// Calls body(offset, count) for each block of 16 elements and for the shorter rest.
template <class Body>
inline void by_sixteen(std::size_t size, Body body) {
    std::size_t i = 0;
    for (; i + 16 <= size; i += 16)
        body(i, std::size_t{16});
    if (i < size)
        body(i, size - i);
}

} // namespace detail

/// x / sqrt(mean(x^2) + epsilon) * weight (Zhang & Sennrich 2019). `out` may be `x`. (columns)
/// The sum is accumulated in 16 lanes over ascending columns, then reduced by one fixed tree.
inline void rms_norm(std::span<const float> x, std::span<const float> weight, float epsilon, std::span<float> out) {
    f32x16 squares = f32x16::zero();
    detail::by_sixteen(x.size(), [&](std::size_t i, std::size_t n) {
        const f32x16 v = f32x16::load_up_to(x.data() + i, n);
        squares = fma(v, v, squares);
    });
    const float mean = sum(squares) / static_cast<float>(x.size());
    const f32x16 scale = f32x16::broadcast(1.0f / std::sqrt(mean + epsilon));
    detail::by_sixteen(x.size(), [&](std::size_t i, std::size_t n) {
        const f32x16 v = f32x16::load_up_to(x.data() + i, n) * scale;
        (v * f32x16::load_up_to(weight.data() + i, n)).store_up_to(out.data() + i, n);
    });
}

/// silu(gate) * up, into `out`, which may be `gate` (Shazeer 2020, SwiGLU). (columns)
inline void gated_silu(std::span<const float> gate, std::span<const float> up, std::span<float> out) {
    detail::by_sixteen(gate.size(), [&](std::size_t i, std::size_t n) {
        const f32x16 g = silu(f32x16::load_up_to(gate.data() + i, n));
        (g * f32x16::load_up_to(up.data() + i, n)).store_up_to(out.data() + i, n);
    });
}

/// gelu(gate) * up, likewise (Shazeer 2020, GEGLU).
inline void gated_gelu(std::span<const float> gate, std::span<const float> up, std::span<float> out) {
    detail::by_sixteen(gate.size(), [&](std::size_t i, std::size_t n) {
        const f32x16 g = gelu(f32x16::load_up_to(gate.data() + i, n));
        (g * f32x16::load_up_to(up.data() + i, n)).store_up_to(out.data() + i, n);
    });
}

/// g / (1 + e^(-alpha g)) * (1 + u) for g = min(gate, limit) and u = up within +-limit, into `out`, which may be `gate`
/// (gpt-oss, OpenAI 2025). (columns)
inline void gated_clamped_silu(std::span<const float> gate, std::span<const float> up, float alpha, float limit,
                               std::span<float> out) {
    const f32x16 one = f32x16::broadcast(1.0f), most = f32x16::broadcast(limit), sharp = f32x16::broadcast(-alpha);
    detail::by_sixteen(gate.size(), [&](std::size_t i, std::size_t n) {
        const f32x16 g = min(f32x16::load_up_to(gate.data() + i, n), most);
        const f32x16 u = max(min(f32x16::load_up_to(up.data() + i, n), most), -most);
        const f32x16 opened = max(f32x16::broadcast(-88.0f / alpha), g) / (one + exp(g * sharp));
        fma(opened, u, opened).store_up_to(out.data() + i, n);
    });
}

/// x * factor, into `out`, which may be `x`. (columns)
inline void scale(std::span<const float> x, float factor, std::span<float> out) {
    detail::by_sixteen(x.size(), [&](std::size_t i, std::size_t n) {
        (f32x16::load_up_to(x.data() + i, n) * f32x16::broadcast(factor)).store_up_to(out.data() + i, n);
    });
}

/// soft_cap of each number, in place. (columns)
inline void soft_cap(std::span<float> x, float cap) {
    detail::by_sixteen(x.size(), [&](std::size_t i, std::size_t n) {
        soft_cap(f32x16::load_up_to(x.data() + i, n), cap).store_up_to(x.data() + i, n);
    });
}

/// to = fma(from, factor, to). (columns)
inline void add_scaled(std::span<float> to, float factor, std::span<const float> from) {
    detail::by_sixteen(to.size(), [&](std::size_t i, std::size_t n) {
        fma(f32x16::load_up_to(from.data() + i, n), f32x16::broadcast(factor), f32x16::load_up_to(to.data() + i, n))
            .store_up_to(to.data() + i, n);
    });
}

/// to += from. (columns)
inline void add_to(std::span<float> to, std::span<const float> from) {
    detail::by_sixteen(to.size(), [&](std::size_t i, std::size_t n) {
        (f32x16::load_up_to(to.data() + i, n) + f32x16::load_up_to(from.data() + i, n)).store_up_to(to.data() + i, n);
    });
}

namespace portable_math {

// Portable double-precision elementary functions: the same bits with every compiler and C library, which libm does not
// guarantee. Accurate to about 1e-15. Every product that feeds a sum is an explicit std::fma.

/// Natural logarithm of a positive, finite, normal number.
[[nodiscard]] inline double log(double x) noexcept {
    constexpr double ln2_high = 0x1.62e42fefa39efp-1, ln2_low = 0x1.abc9e3b39803fp-56;
    const auto bits = bit_cast<std::uint64_t>(x);
    auto exponent = static_cast<double>(static_cast<int>((bits >> 52) & 0x7ff) - 1023);
    double m = bit_cast<double>((bits & 0xfffffffffffffu) | 0x3ff0000000000000u);
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
    return p * bit_cast<double>((static_cast<std::uint64_t>(static_cast<std::int64_t>(n) + 1023)) << 52);
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

} // namespace portable_math

}} // namespace kvcache
