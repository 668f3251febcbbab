// SPDX-License-Identifier: MIT
// message: newest.*an eviction state needs: std::optional<slot_id> victim
// within: 5
#include <kvcache/cache.hpp>

struct newest {
    using role = kvcache::eviction_role;
    struct state {
        void admit(kvcache::slot_id, const kvcache::eviction_entry&) {}
        void touch(kvcache::slot_id) {}
        void erase(kvcache::slot_id) {}
#ifdef KVCACHE_MUST_FAIL
        std::optional<kvcache::slot_id> victim(){
#else
        std::optional<kvcache::slot_id> victim(const auto&) {
#endif
            return {};
    }
};
state open(kvcache::eviction_capacity) const {
    return {};
}
}
;

// The message is the only error: the rest of a program sees a cache.
std::size_t newest_pages() {
    auto cache = kvcache::make_cache({{.layers = 2}, {.bytes = 1 << 20}}, newest{});
    auto sequence = cache.open();
    auto lease = cache.reserve(sequence, 16);
    return lease ? cache.stats().pages : 0;
}
