// SPDX-License-Identifier: MIT
// message: \.bytes|and_bytes
// within: 5
#include <kvcache/cache.hpp>

#ifdef KVCACHE_MUST_FAIL
auto cache_of_limit = kvcache::make_cache({{.layers = 2}, {.byte = 1 << 20}});
#else
auto cache_of_limit = kvcache::make_cache({{.layers = 2}, {.bytes = 1 << 20}});
#endif
