// SPDX-License-Identifier: MIT
// message: one_policy_a_role
#include <kvcache/cache/compose.hpp>
#include <kvcache/observer/counting.hpp>

#ifdef KVCACHE_MUST_FAIL
using second = kvcache::silent;
#else
using second = kvcache::lru;
#endif
auto cache = kvcache::make_cache(kvcache::page_shape{2, 2, 16, 16}, {1 << 20}, kvcache::counting{}, second{});
