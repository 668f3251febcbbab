// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/locking/concept.hpp>

namespace kvcache { inline namespace KVCACHE_ABI { namespace locking {

/// Only one thread at a time uses the cache; nothing is locked.
struct none {
    using role = locking_role;
    struct state {
        void lock() noexcept {}
        void unlock() noexcept {}
    };
};

static_assert(locking_policy<none>);

}}} // namespace kvcache::locking
