// SPDX-License-Identifier: MIT
// message: -ffast-math reorders sums
#ifdef KVCACHE_MUST_FAIL
#define __FAST_MATH__ 1 // what the compiler defines for the flag
#endif
#include <kvcache/kernel/simd.hpp>
