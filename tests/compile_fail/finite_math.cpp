// SPDX-License-Identifier: MIT
// message: -ffinite-math-only breaks the infinities
#ifdef KVCACHE_MUST_FAIL
#undef __FINITE_MATH_ONLY__
#define __FINITE_MATH_ONLY__ 1 // what the compiler defines for the flag
#endif
#include <kvcache/kernel/simd.hpp>
