// SPDX-License-Identifier: MIT
// message: for_each_run needs a row-major codec
#include <kvcache/cache/compose.hpp>
#include <kvcache/codec/row_major.hpp>

void read_rows();
void read_rows() {
#ifdef KVCACHE_MUST_FAIL
    using codec = kvcache::codec::f32; // its keys are transposed
#else
    using codec = kvcache::codec::nhd_f32;
#endif
    auto cache = kvcache::make_cache({kvcache::page_shape{}, {.bytes = 1 << 20}}, codec{});
    cache.open().for_each_run({}, {}, [](const auto&) {});
}
