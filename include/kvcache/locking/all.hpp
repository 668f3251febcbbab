// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/locking/concept.hpp>
#include <kvcache/locking/mutexed.hpp>
#include <kvcache/locking/unlocked.hpp>

#include <tuple>

namespace kvcache::inline KVCACHE_ABI {

/// Every locking policy of the library, with its standard options.
using locking_policies = std::tuple<unlocked, mutexed>;

} // namespace kvcache
