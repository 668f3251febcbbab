// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/hash/concept.hpp>
#include <kvcache/index/concept.hpp>
#include <kvcache/locking/concept.hpp>
#include <kvcache/observer/concept.hpp>
#include <kvcache/recompute/concept.hpp>
#include <kvcache/storage/concept.hpp>
#include <kvcache/tier/concept.hpp>

#include <cstddef>

namespace kvcache::inline KVCACHE_ABI {

/// What a cache is opened for.
struct cache_config {
    page_shape shape;
    cache_limits limit = {};
    identity id = {};        ///< Everything else that determines a page's bits.
    std::size_t tenants = 0; ///< The maximum number of tenants; 0 for a cache without tenants.
};

/// One policy for each role of a cache.
template <codec_policy Codec, storage_policy Storage, hash_policy Hash, index_policy Index, eviction_policy Eviction,
          recompute_policy Recompute, tier_policy Tier, observer_policy Observer, locking_policy Locking>
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

/// The memory of a cache's pages.
struct pool_config {
    page_shape shape;
    std::size_t pages = 0;
    std::size_t page_bytes = 0;
    std::size_t tenants = 0; ///< The maximum number of tenants.
};

} // namespace kvcache
