// SPDX-License-Identifier: MIT
// message: deleted
#include <kvcache/cache/compose.hpp>

auto cache = kvcache::make_cache({kvcache::page_shape{2, 2, 16, 16}, {1 << 20}});
#ifdef KVCACHE_MUST_FAIL
auto twin = cache;
#endif
