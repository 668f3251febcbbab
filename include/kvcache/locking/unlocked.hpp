// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/locking/concept.hpp>

namespace kvcache::inline KVCACHE_ABI {

/// One thread at a time uses the cache; nothing is locked.
struct unlocked {
    using role = locking_role;
    struct state {
        void lock() noexcept {}
        void unlock() noexcept {}
    };
};

static_assert(locking_policy<unlocked>);

} // namespace kvcache
