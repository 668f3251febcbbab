// SPDX-License-Identifier: MIT
// message: evry
#include <kvcache/cache/compose.hpp>
#include <kvcache/testing/fault_injecting.hpp>

auto cache =
    kvcache::make_cache({kvcache::page_shape{2, 2, 16, 16}, {1 << 20}}, kvcache::testing::fault_injecting_storage<>{
#ifdef KVCACHE_MUST_FAIL
                                                                            .evry = 3
#else
                                                                            .every = 3
#endif
                                                                        });
