// SPDX-License-Identifier: MIT
// Every header that needs nothing but xxhash, with the warnings of the library's own development.
#include <kvcache/cache.hpp>
#include <kvcache/cache/block_tables.hpp>
#include <kvcache/eviction/all.hpp>
#include <kvcache/index/all.hpp>
#include <kvcache/locking/mutex.hpp>
#include <kvcache/observer/all.hpp>
#include <kvcache/recompute/all.hpp>
#include <kvcache/storage/all.hpp>
#include <kvcache/tier.hpp>
