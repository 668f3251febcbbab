// SPDX-License-Identifier: MIT
#pragma once

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
