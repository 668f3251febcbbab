// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <bit>
#include <cmath>
#include <cstdint>

/// Qualifiers for functions that run on the host and, under nvcc, on the device: arithmetic and kernel bodies. With
/// other compilers they are just `inline`. KVCACHE_DEVICE_UNROLL marks loops whose arrays have to stay in registers.
#if defined(__CUDACC__)
#define KVCACHE_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define KVCACHE_HOST_DEVICE inline
#endif

#if defined(__CUDA_ARCH__)
#define KVCACHE_DEVICE_UNROLL _Pragma("unroll")
#define KVCACHE_DEVICE_UNROLL_4 _Pragma("unroll 4")
#else
#define KVCACHE_DEVICE_UNROLL
#define KVCACHE_DEVICE_UNROLL_4
#endif

/// Arithmetic with the same bits on the host and on a device: every operation rounds once and nothing is contracted,
/// whatever the compiler options. The 16-bit formats round as in core/number_format.hpp.

namespace kvcache { inline namespace KVCACHE_ABI { namespace cuda {

/// x * y + z, rounded once.
[[nodiscard]] KVCACHE_HOST_DEVICE float fused(float x, float y, float z) noexcept {
#if defined(__CUDA_ARCH__)
    return __fmaf_rn(x, y, z);
#else
    return std::fma(x, y, z);
#endif
}

/// x * y, protected from contraction with a following sum.
[[nodiscard]] KVCACHE_HOST_DEVICE float times(float x, float y) noexcept {
#if defined(__CUDA_ARCH__)
    return __fmul_rn(x, y);
#elif defined(__GNUC__) && defined(__SSE2__)
    float product = x * y;
    asm("" : "+x"(product));
    return product;
#else
    volatile float product = x * y;
    return product;
#endif
}

/// x + y, rounded once and not contracted with a product.
[[nodiscard]] KVCACHE_HOST_DEVICE float plus(float x, float y) noexcept {
#if defined(__CUDA_ARCH__)
    return __fadd_rn(x, y);
#else
    return x + y;
#endif
}

/// x / y, correctly rounded.
[[nodiscard]] KVCACHE_HOST_DEVICE float divided(float x, float y) noexcept {
#if defined(__CUDA_ARCH__)
    return __fdiv_rn(x, y);
#else
    return x / y;
#endif
}

/// x * y + z in double precision, rounded once.
[[nodiscard]] KVCACHE_HOST_DEVICE double fused(double x, double y, double z) noexcept {
#if defined(__CUDA_ARCH__)
    return __fma_rn(x, y, z);
#else
    return std::fma(x, y, z);
#endif
}

/// Maximum that propagates NaN.
[[nodiscard]] KVCACHE_HOST_DEVICE float larger_or_none(float x, float y) noexcept {
    return x > y || x != x ? x : y;
}
/// Absolute value; keeps the sign of -0.
[[nodiscard]] KVCACHE_HOST_DEVICE float size_of(float x) noexcept {
    return x < 0.0f ? -x : x;
}

/// Nearest integer, ties to even. Requires: |x| < 2^22.
[[nodiscard]] KVCACHE_HOST_DEVICE float nearest(float x) noexcept {
#if defined(__CUDA_ARCH__)
    return rintf(x);
#else
    return std::nearbyint(x);
#endif
}

/// 2^x for x <= 0, with a relative error of 2^-23; zero below -126; NaN stays NaN. A polynomial of our own, since a
/// device's exponential gives different bits.
[[nodiscard]] KVCACHE_HOST_DEVICE float power_of_two(float x) noexcept {
    if (!(x >= -126.0f))
        return x != x ? x : 0.0f;
    const float whole = nearest(x), rest = plus(x, -whole);
    float sum = 1.52527338e-5f; // log(2)^k / k!, from k = 7 down
    sum = fused(sum, rest, 1.54035304e-4f);
    sum = fused(sum, rest, 1.33335581e-3f);
    sum = fused(sum, rest, 9.61812911e-3f);
    sum = fused(sum, rest, 5.55041087e-2f);
    sum = fused(sum, rest, 2.40226507e-1f);
    sum = fused(sum, rest, 6.93147181e-1f);
    sum = fused(sum, rest, 1.0f);
    return times(sum, std::bit_cast<float>(static_cast<std::uint32_t>(static_cast<std::int32_t>(whole) + 127) << 23));
}

/// The number that a bfloat16 holds, exactly.
[[nodiscard]] KVCACHE_HOST_DEVICE constexpr float from_bf16(std::uint16_t bits) noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// Converts a binary16 to float32; a NaN becomes quiet.
[[nodiscard]] KVCACHE_HOST_DEVICE float from_f16(std::uint16_t bits) noexcept {
#if defined(__CUDA_ARCH__)
    float number;
    asm("cvt.f32.f16 %0, %1;" : "=f"(number) : "h"(bits));
    return number;
#else
    const std::uint32_t sign = (bits & 0x8000u) << 16, exponent = (bits >> 10) & 0x1Fu, fraction = bits & 0x3FFu;
    if (exponent == 31)
        return std::bit_cast<float>(sign | (fraction == 0 ? 0x7F800000u : 0x7FC00000u) | fraction << 13);
    if (exponent != 0)
        return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
    const float size = static_cast<float>(fraction) * 0x1p-24f; // exact
    return sign != 0 ? -size : size;
#endif
}

/// Rounds to the nearest bfloat16, ties to even; larger magnitudes saturate to the largest finite value.
[[nodiscard]] KVCACHE_HOST_DEVICE constexpr std::uint16_t to_bf16(float number) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(number);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
    const std::uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16, size = rounded & 0x7FFFu;
    return static_cast<std::uint16_t>((rounded & 0x8000u) | (size < 0x7F7Fu ? size : 0x7F7Fu));
}

/// Rounds to the nearest binary16, ties to even; larger magnitudes saturate to the largest finite value.
[[nodiscard]] KVCACHE_HOST_DEVICE constexpr std::uint16_t to_f16(float number) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(number);
    const std::uint32_t sign = bits >> 16 & 0x8000u, size = bits & 0x7FFFFFFFu;
    if (size > 0x7F800000u)
        return static_cast<std::uint16_t>(sign | 0x7E00u);
    if (size >= 0x477FE000u) // 65504
        return static_cast<std::uint16_t>(sign | 0x7BFFu);
    if (size < 0x33000000u) // below half of the smallest subnormal
        return static_cast<std::uint16_t>(sign);
    const std::uint32_t exponent = size >> 23, fraction = (size & 0x7FFFFFu) | 0x800000u;
    const std::uint32_t shift = exponent >= 113 ? 13 : 126 - exponent;
    const std::uint32_t kept = fraction >> shift, rest = fraction & ((1u << shift) - 1), middle = 1u << (shift - 1);
    const std::uint32_t up = rest > middle || (rest == middle && (kept & 1u) != 0) ? 1 : 0;
    const std::uint32_t above = exponent >= 113 ? (exponent - 113) << 10 : 0;
    return static_cast<std::uint16_t>(sign | (above + kept + up));
}

/// Sixteen bytes: one vector load or store of a thread.
struct alignas(16) vector16 {
    std::uint32_t words[4];
};

/// sum + the dot product of four int8 and four int16 values. Exact.
[[nodiscard]] KVCACHE_HOST_DEVICE std::int32_t dot_8_16(std::uint32_t eights, std::uint32_t low, std::uint32_t high,
                                                        std::int32_t sum) noexcept {
#if defined(__CUDA_ARCH__)
    sum = __dp2a_lo(static_cast<int>(low), static_cast<int>(eights), sum);
    return __dp2a_hi(static_cast<int>(high), static_cast<int>(eights), sum);
#else
    const auto eight = [&](int i) { return static_cast<std::int32_t>(static_cast<std::int8_t>(eights >> (8 * i))); };
    const auto sixteen = [](std::uint32_t pair, int i) {
        return static_cast<std::int32_t>(static_cast<std::int16_t>(pair >> (16 * i)));
    };
    return sum + eight(0) * sixteen(low, 0) + eight(1) * sixteen(low, 1) + eight(2) * sixteen(high, 0) +
           eight(3) * sixteen(high, 1);
#endif
}

}}} // namespace kvcache::cuda
