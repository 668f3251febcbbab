// SPDX-License-Identifier: MIT
// message: by_hash.*an index needs: state open\(page_shape, std::size_t pages\)
// within: 5
#include <kvcache/cache.hpp>

struct by_hash : kvcache::hash::xxh3 {
#ifdef KVCACHE_MUST_FAIL
    using role = kvcache::index_role;
#endif
};
auto cache_by_hash = kvcache::make_cache({{.layers = 2}, {.bytes = 1 << 20}}, by_hash{});
