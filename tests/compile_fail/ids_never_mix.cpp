// SPDX-License-Identifier: MIT
// message: slot_id
#include <kvcache/core/id.hpp>

#ifdef KVCACHE_MUST_FAIL
constexpr kvcache::page_id page = kvcache::slot_id{1};
#else
constexpr kvcache::page_id page = kvcache::page_id{1};
#endif
static_assert(kvcache::index_of(page) == 1);
