// SPDX-License-Identifier: MIT
// message: one_policy_a_role
#include <kvcache/cache/compose.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/observer/counting.hpp>

#ifdef KVCACHE_MUST_FAIL
using second = kvcache::observer::none;
#else
using second = kvcache::eviction::lru;
#endif
static_assert(kvcache::one_policy_a_role<kvcache::observer::counting, second>);
