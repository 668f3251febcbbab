// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/locking/concept.hpp>

#include <mutex>

namespace kvcache::inline KVCACHE_ABI::locking {

/// Any number of threads may use the cache. One mutex guards its metadata; pages are written and read outside of the
/// lock.
struct mutex {
    using role = locking_role;
    using state = std::mutex;
};

static_assert(locking_policy<mutex>);

} // namespace kvcache::locking
