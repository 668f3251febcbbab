// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/platform/machine.hpp>

#include <xsimd/xsimd.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__)
#error "kvcache: -ffast-math reorders sums, so a hit would no longer equal a miss; build without it"
#endif
#if KVCACHE_TARGET_IS_SHARED
#error "kvcache: KVCACHE_TARGET is for the cache alone; arithmetic has another layout for each instruction set"
#endif
#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#error "kvcache: -ffinite-math-only breaks the infinities that mask scores; build without it"
#endif
#if !defined(__FMA__) && !defined(__AVX512F__) && !defined(__ARM_FEATURE_FMA) && !defined(KVCACHE_ALLOW_SLOW)
#error "kvcache: no fused multiply-add here; use -march=native or x86-64-v3, or define KVCACHE_ALLOW_SLOW"
#endif

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

using native_floats = xsimd::batch<float>;
using native_integers = xsimd::batch<std::int32_t>;
inline constexpr std::size_t native_lanes = native_floats::size;
inline constexpr std::size_t native_parts = 16 / native_lanes;
static_assert(native_lanes == 4 || native_lanes == 8 || native_lanes == 16, "a vector is 4, 8 or 16 floats");

/// x * y + z, rounded once, on every target. xsimd's own fma rounds twice on AVX-512 and on some NEON targets.
[[nodiscard]] inline native_floats fused(const native_floats& x, const native_floats& y,
                                         const native_floats& z) noexcept {
#if defined(__AVX512F__)
    return native_floats(_mm512_fmadd_ps(x.data, y.data, z.data));
#elif defined(__AVX2__) && defined(__FMA__)
    return native_floats(_mm256_fmadd_ps(x.data, y.data, z.data));
#elif defined(__ARM_FEATURE_FMA) && defined(__aarch64__)
    return native_floats(vfmaq_f32(z.data, x.data, y.data));
#else
    alignas(64) float a[native_lanes], b[native_lanes], c[native_lanes];
    x.store_unaligned(a), y.store_unaligned(b), z.store_unaligned(c);
    for (std::size_t lane = 0; lane < native_lanes; ++lane)
        c[lane] = std::fma(a[lane], b[lane], c[lane]);
    return native_floats::load_unaligned(c);
#endif
}

/// Keeps a vector that several operations read in its register: GCC would reload it for each.
inline void keep(native_floats& x) noexcept {
#if defined(__GNUC__) && defined(__SSE2__)
    asm("" : "+x"(x.data));
#elif defined(__GNUC__) && defined(__aarch64__)
    asm("" : "+w"(x.data));
#endif
}

/// Keeps a moving pointer as the single base of nearby addresses: GCC would compute each address first.
template <class T>
inline void keep(T*& x) noexcept {
#if defined(__GNUC__)
    asm("" : "+r"(x));
#endif
}

/// sum = x * y + sum, rounded once, in the register of the sum: GCC adds register moves in long loops.
inline void accumulate(native_floats& sum, const native_floats& x, const native_floats& y) noexcept {
#if defined(__GNUC__) && defined(__AVX512F__)
    asm volatile("vfmadd231ps %2, %1, %0" : "+v"(sum.data) : "v"(x.data), "v"(y.data));
#elif defined(__GNUC__) && defined(__AVX2__) && defined(__FMA__)
    asm volatile("vfmadd231ps %2, %1, %0" : "+x"(sum.data) : "x"(x.data), "x"(y.data));
#else
    sum = fused(x, y, sum);
#endif
}

/// x / y, rounded once. The division of xsimd 8 on NEON is a refined estimate.
[[nodiscard]] inline native_floats divided(const native_floats& x, const native_floats& y) noexcept {
#if defined(__aarch64__)
    return native_floats(vdivq_f32(x.data, y.data));
#else
    return x / y;
#endif
}

} // namespace detail

}} // namespace kvcache
