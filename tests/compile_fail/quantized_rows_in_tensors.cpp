// SPDX-License-Identifier: MIT
// message: read_rows needs a codec that writes single rows
#include <kvcache/adapters/tensors.hpp>
#include <kvcache/cache/compose.hpp>
#include <kvcache/codec/int8.hpp>

#include <array>

void fill_past_tensors();
void fill_past_tensors() {
#ifdef KVCACHE_MUST_FAIL
    using codec = kvcache::codec::int8;
#else
    using codec = kvcache::codec::f32;
#endif
    auto cache = kvcache::make_cache({kvcache::page_shape{}, {.bytes = 1 << 20}}, codec{});
    const std::array<kvcache::token_id, 1> prompt = {};
    (void)kvcache::read_rows(cache.acquire(prompt)->lease, kvcache::layer_id{0}, {});
}
