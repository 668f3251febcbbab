// SPDX-License-Identifier: MIT
// message: eviction_role.*eviction::lru.*eviction::fifo.*two policies both play the same role
// within: 5
#include <kvcache/cache.hpp>
#include <kvcache/eviction/fifo.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/observer/counting.hpp>

#ifdef KVCACHE_MUST_FAIL
using second = kvcache::eviction::fifo;
#else
using second = kvcache::observer::counting;
#endif
auto cache_of_two = kvcache::make_cache({{.layers = 2}, {.bytes = 1 << 20}}, kvcache::eviction::lru{}, second{});
