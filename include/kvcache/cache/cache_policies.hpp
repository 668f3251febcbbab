// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/hash/concept.hpp>
#include <kvcache/index/concept.hpp>
#include <kvcache/locking/concept.hpp>
#include <kvcache/observer/concept.hpp>
#include <kvcache/recompute/concept.hpp>
#include <kvcache/storage/concept.hpp>
#include <kvcache/tier/concept.hpp>

namespace kvcache::inline KVCACHE_ABI {

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

} // namespace kvcache
