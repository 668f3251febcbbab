// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/kernel/simd.hpp>

#include <cmath>
#include <cstddef>
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

/// to += from. (columns)
inline void add_to(std::span<float> to, std::span<const float> from) {
    detail::by_sixteen(to.size(), [&](std::size_t i, std::size_t n) {
        (f32x16::load_up_to(to.data() + i, n) + f32x16::load_up_to(from.data() + i, n)).store_up_to(to.data() + i, n);
    });
}

}} // namespace kvcache
