// SPDX-License-Identifier: MIT
// message: evry
#include <kvcache/cache/compose.hpp>
#include <kvcache/storage/fault_injecting.hpp>

auto cache = kvcache::make_cache(kvcache::page_shape{2, 2, 16, 16}, {1 << 20},
                                 kvcache::storage::fault_injecting<>{
#ifdef KVCACHE_MUST_FAIL
                                     .evry = 3
#else
                                     .every = 3
#endif
                                 });
