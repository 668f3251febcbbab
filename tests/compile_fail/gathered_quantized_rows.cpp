// SPDX-License-Identifier: MIT
// message: gather needs a codec that writes single rows
#include <kvcache/cache/compose.hpp>
#include <kvcache/codec/int8.hpp>

void gather_rows();
void gather_rows() {
#ifdef KVCACHE_MUST_FAIL
    using codec = kvcache::codec::int8;
#else
    using codec = kvcache::codec::f32;
#endif
    auto cache = kvcache::make_cache({kvcache::page_shape{}, {.bytes = 1 << 20}}, codec{});
    cache.open().gather({}, {}, {}, {});
}
