// SPDX-License-Identifier: MIT
// message: [._]kv_heads
// within: 5
#include <kvcache/cache.hpp>

#ifdef KVCACHE_MUST_FAIL
auto cache_of_shape = kvcache::make_cache({{.layers = 2, .kv_head = 2}, {.bytes = 1 << 20}});
#else
auto cache_of_shape = kvcache::make_cache({{.layers = 2, .kv_heads = 2}, {.bytes = 1 << 20}});
#endif
