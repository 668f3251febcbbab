// SPDX-License-Identifier: MIT
// message: external memory.s copy is bool.page_id from, page_id to.
#include <kvcache/cache.hpp>
#include <kvcache/storage/external.hpp>

kvcache::storage::external blocks();
kvcache::storage::external blocks() {
#ifdef KVCACHE_MUST_FAIL
    return {.copy = [](kvcache::page_id, kvcache::page_id) {}};
#else
    return {.copy = [](kvcache::page_id, kvcache::page_id) { return true; }};
#endif
}
