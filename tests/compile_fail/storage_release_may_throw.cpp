// SPDX-License-Identifier: MIT
// message: mine.*a storage's state needs: void release\(page_id\) noexcept
// within: 5
#include <kvcache/cache.hpp>

#ifdef KVCACHE_MUST_FAIL
#define QUIET
#else
#define QUIET noexcept
#endif

struct mine {
    using role = kvcache::storage_role;
    struct state {
        bool acquire(kvcache::page_id);
        void release(kvcache::page_id) QUIET;
        std::span<std::byte> bytes(kvcache::page_id) const;
    };
    state open(std::size_t pages, std::size_t page_bytes) const;
};
static_assert(!kvcache::cache<mine>::has_tier);
