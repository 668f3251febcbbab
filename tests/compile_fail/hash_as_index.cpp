// SPDX-License-Identifier: MIT
// message: hash::xxh3.*the fourth of cache_policies is an index_policy
// within: 5
#include <kvcache/cache.hpp>
#include <kvcache/eviction/lru.hpp>

#ifdef KVCACHE_MUST_FAIL
using fourth = kvcache::hash::xxh3;
#else
using fourth = kvcache::index::radix;
#endif
using policies_by_place = kvcache::cache_policies<kvcache::codec::f32, kvcache::storage::heap, kvcache::hash::xxh3,
                                                  fourth, kvcache::eviction::lru, kvcache::recompute::exact_prefix,
                                                  kvcache::tier::none, kvcache::observer::none, kvcache::locking::none>;
kvcache::basic_cache<policies_by_place> cache_by_place({{.layers = 2}, {.bytes = 1 << 20}}, policies_by_place{});
