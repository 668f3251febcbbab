// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

// GCC 12 reports uninitialized values inside its own AVX-512 intrinsics, wherever a program inlines them. A warning
// belongs to the line it points at, so it is silenced there: include this header before any other header that includes
// the intrinsics.
#if defined(__x86_64__) || defined(__i386__)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#if defined(__AVX__)
#include <immintrin.h>
#else
#include <emmintrin.h> // a tenth of the lines
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

#include <cstddef>
#include <cstdint>

/// Forces inlining. For functions whose sums must stay in the caller's registers, and for functions that only prefetch:
/// GCC considers them free of effects and drops the calls. On a lambda: after its (...).
#if defined(__GNUC__)
#define KVCACHE_INLINE __attribute__((always_inline))
#else
#define KVCACHE_INLINE
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

}} // namespace kvcache
