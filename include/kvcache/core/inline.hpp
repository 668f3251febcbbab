// SPDX-License-Identifier: MIT
#pragma once

/// For what must become part of its caller: for the compiler to keep sums in registers, and for what does nothing but
/// prefetch, since GCC takes such a function for one without effect and drops its calls. On a lambda: after its (...).
#if defined(__GNUC__)
#define KVCACHE_INLINE __attribute__((always_inline))
#else
#define KVCACHE_INLINE
#endif

/// Before a loop of a constant number of turns, 64 at most: the loop is fully unrolled. nvcc rejects the pragma.
#if defined(__CUDACC__)
#define KVCACHE_UNROLL
#elif defined(__clang__)
#define KVCACHE_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define KVCACHE_UNROLL _Pragma("GCC unroll 64")
#else
#define KVCACHE_UNROLL
#endif
