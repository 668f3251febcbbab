// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

namespace kvcache { inline namespace KVCACHE_ABI {

/// One policy for each role of a cache, in this order. basic_cache requires that each has its role.
template <class Codec, class Storage, class Hash, class Index, class Eviction, class Recompute, class Tier,
          class Observer, class Locking>
struct cache_policies {
    Codec codec = {};
    Storage storage = {};
    Hash hash = {};
    Index index = {};
    Eviction eviction = {};
    Recompute recompute = {};
    Tier tier = {};
    Observer observer = {};
    Locking locking = {};
};

}} // namespace kvcache
