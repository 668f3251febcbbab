// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/locking/concept.hpp>

#include <mutex>

namespace kvcache::inline KVCACHE_ABI {

/// Any number of threads use the cache; one mutex guards its books. Pages are written and read outside of it.
struct mutexed {
    using role = locking_role;
    using state = std::mutex;
};

static_assert(locking_policy<mutexed>);

} // namespace kvcache
