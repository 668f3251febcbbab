// SPDX-License-Identifier: MIT
// message: no fused multiply-add here
#ifdef KVCACHE_MUST_FAIL
#undef __FMA__
#undef __AVX512F__
#undef __ARM_FEATURE_FMA
#endif
#include <kvcache/kernel/simd.hpp>
