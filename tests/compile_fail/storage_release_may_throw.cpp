// SPDX-License-Identifier: MIT
// message: noexcept|release
#include <kvcache/storage/concept.hpp>

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
static_assert(kvcache::storage_policy<mine>);
