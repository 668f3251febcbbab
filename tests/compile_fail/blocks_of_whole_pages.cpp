// SPDX-License-Identifier: MIT
// message: the blocks of layer groups have a codec that writes row by row
#include <kvcache/cache/compose.hpp>
#include <kvcache/codec/int8.hpp>
#include <kvcache/layer_groups.hpp>

void open_groups();
void open_groups() {
#ifdef KVCACHE_MUST_FAIL
    using codec = kvcache::codec::int8;
#else
    using codec = kvcache::codec::by_group<kvcache::codec::int8, kvcache::codec::f32>;
#endif
    static_cast<void>(kvcache::make_cache({.limit = {.bytes = 1 << 20}}, codec{}, kvcache::layers::grouped{}).check());
}
