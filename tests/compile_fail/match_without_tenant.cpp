// SPDX-License-Identifier: MIT
// message: no member named .?.?match|has no member named .?.?.?match
#include <kvcache/cache/tenant_cache.hpp>

void match_resident(std::span<const kvcache::token_id> prompt) {
    auto cache = kvcache::make_tenant_cache(2, {}, kvcache::page_shape{2, 2, 16, 16}, {1 << 20});
    const auto mine = cache.open(kvcache::tenant_salt("mine"), 8);
#ifdef KVCACHE_MUST_FAIL
    static_cast<void>(cache.match(prompt));
#else
    static_cast<void>(mine->match(prompt));
#endif
}
