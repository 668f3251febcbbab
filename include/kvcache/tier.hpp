// SPDX-License-Identifier: MIT
#pragma once

// Tiers, which keep pages that leave memory: <kvcache/cache.hpp>, and the tiers that need no library. LMDB and Redis
// have headers of their own, <kvcache/tier/lmdb.hpp> and <kvcache/tier/redis.hpp>.

#if __cplusplus < 202002L
#error "kvcache: C++20 is needed; compile with -std=c++20"
#else
#include <kvcache/cache.hpp>
#include <kvcache/cache/block_records.hpp>
#include <kvcache/cache/tier_client.hpp>
#include <kvcache/tier/all.hpp>
#endif
