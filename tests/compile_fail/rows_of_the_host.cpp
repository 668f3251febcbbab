// SPDX-License-Identifier: MIT
// message: the host writes rows that are in its own memory: slot_of says where
#include <kvcache/cache.hpp>
#include <kvcache/storage/external.hpp>

#include <vector>

void write_rows();
void write_rows() {
#ifdef KVCACHE_MUST_FAIL
    using storage = kvcache::storage::external;
#else
    using storage = kvcache::storage::heap;
#endif
    auto cache = kvcache::make_cache({kvcache::page_shape{}, {.pages = 4}}, storage{});
    auto sequence = cache.open();
    const std::vector<float> row(64);
    cache.reserve(sequence, 1)->write({}, 0, row, row);
}
