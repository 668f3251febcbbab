// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

// The family of the system: 1 for the one that it is. A system of neither family has what standard C++ has: no memory
// mappings, and files that are read as a whole.
#if defined(_WIN32)
#define KVCACHE_WINDOWS 1
#define KVCACHE_POSIX 0
#elif (defined(__unix__) || defined(__APPLE__)) && !defined(__wasm__)
#define KVCACHE_WINDOWS 0
#define KVCACHE_POSIX 1
#else
#define KVCACHE_WINDOWS 0
#define KVCACHE_POSIX 0
#endif

// GCC 12 reports uninitialized values inside its own AVX-512 intrinsics, wherever a program inlines them. A warning
// belongs to the line it points at, so it is silenced there: include this header before any other header that includes
// the intrinsics.
#if defined(__x86_64__) || defined(__i386__) || defined(_M_X64) || defined(_M_IX86)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__SSE2__) || defined(_M_X64)
#include <emmintrin.h> // a tenth of the lines
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <limits>
#if !KVCACHE_POSIX
#include <chrono>
#endif

// The extensions of compilers, each with a fallback.

/// Forces inlining. For functions whose sums must stay in the caller's registers, and for functions that only prefetch:
/// GCC considers them free of effects and drops the calls. On a lambda: after its (...).
#if defined(__GNUC__)
#define KVCACHE_INLINE __attribute__((always_inline))
#else
#define KVCACHE_INLINE
#endif

/// Keeps a function out of its callers.
#if defined(__GNUC__)
#define KVCACHE_NOINLINE [[gnu::noinline]]
#elif defined(_MSC_VER)
#define KVCACHE_NOINLINE __declspec(noinline)
#else
#define KVCACHE_NOINLINE
#endif

/// Marks a function that is seldom called. With KVCACHE_NOINLINE.
#if defined(__GNUC__)
#define KVCACHE_COLD [[gnu::cold]]
#else
#define KVCACHE_COLD
#endif

/// Inlines into a function whatever it calls. With KVCACHE_NOINLINE.
#if defined(__GNUC__)
#define KVCACHE_FLATTEN [[gnu::flatten]]
#else
#define KVCACHE_FLATTEN
#endif

/// Fully unrolls the loop that follows, of a constant number of iterations, 64 at most. nvcc rejects the pragma.
#if defined(__CUDACC__)
#define KVCACHE_UNROLL
#elif defined(__clang__)
#define KVCACHE_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define KVCACHE_UNROLL _Pragma("GCC unroll 64")
#else
#define KVCACHE_UNROLL
#endif

namespace kvcache { inline namespace KVCACHE_ABI {

/// Nanoseconds since some moment, by a clock that is never set back.
[[nodiscard]] inline std::int64_t monotonic_nanoseconds() noexcept {
#if KVCACHE_POSIX // <chrono> is 8,000 lines
    std::timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
#else
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
#endif
}

/// The address of element `offset` of `base`. For prefetches only: unlike a pointer, it may lie outside any array.
template <class T>
[[nodiscard]] inline const void* address(const T* base, std::size_t offset) noexcept {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the address is not that of an object
    return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(base) + offset * sizeof(T));
}

/// Prefetches the cache line of element `offset` of `base` for a read soon. Any offset is allowed.
template <class T>
KVCACHE_INLINE inline void prefetch([[maybe_unused]] const T* base, [[maybe_unused]] std::size_t offset) noexcept {
#if defined(__GNUC__)
    __builtin_prefetch(address(base, offset), 0, 3);
#endif
}

/// Prefetches into the second-level cache, for a line that is read somewhat later.
template <class T>
KVCACHE_INLINE inline void prefetch_soon([[maybe_unused]] const T* base, [[maybe_unused]] std::size_t offset) noexcept {
#if defined(__GNUC__)
    __builtin_prefetch(address(base, offset), 0, 2);
#endif
}

/// Prefetches a line for a write soon.
template <class T>
KVCACHE_INLINE inline void prefetch_to_write([[maybe_unused]] const T* base,
                                             [[maybe_unused]] std::size_t offset) noexcept {
#if defined(__GNUC__)
    __builtin_prefetch(address(base, offset), 1, 3);
#endif
}

/// Hints to the processor that this thread is spinning.
inline void spin_pause() noexcept {
#if defined(__SSE2__) || defined(_M_X64)
    _mm_pause();
#elif defined(__aarch64__) && defined(__GNUC__)
    asm volatile("yield");
#endif
}

/// Stores x + y, and returns whether it is past the range of the type; what is stored is then unspecified.
template <std::integral T>
[[nodiscard]] constexpr bool add_overflows(T x, T y, T& sum) noexcept {
#if defined(__GNUC__)
    return __builtin_add_overflow(x, y, &sum);
#else
    using limits = std::numeric_limits<T>;
    if (y < 0 ? x < limits::min() - y : x > limits::max() - y)
        return true;
    sum = static_cast<T>(x + y);
    return false;
#endif
}

/// Stores x - y, and returns whether it is past the range of the type; what is stored is then unspecified.
template <std::integral T>
[[nodiscard]] constexpr bool subtract_overflows(T x, T y, T& difference) noexcept {
#if defined(__GNUC__)
    return __builtin_sub_overflow(x, y, &difference);
#else
    using limits = std::numeric_limits<T>;
    if (y < 0 ? x > limits::max() + y : x < limits::min() + y)
        return true;
    difference = static_cast<T>(x - y);
    return false;
#endif
}

/// Stores x * y, and returns whether it is past the range of the type; what is stored is then unspecified.
template <std::integral T>
[[nodiscard]] constexpr bool multiply_overflows(T x, T y, T& product) noexcept {
#if defined(__GNUC__)
    return __builtin_mul_overflow(x, y, &product);
#else
    using limits = std::numeric_limits<T>;
    if (x != 0 && y != 0) {
        const bool over = x > 0 ? (y > 0 ? x > limits::max() / y : y < limits::min() / x)
                                : (y > 0 ? x < limits::min() / y : x < limits::max() / y);
        if (over)
            return true;
    }
    product = static_cast<T>(x * y);
    return false;
#endif
}

}} // namespace kvcache
