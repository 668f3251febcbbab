// SPDX-License-Identifier: MIT
#pragma once

// All of the library but <kvcache/testing.hpp>, and but what has a library of its own: LMDB, Redis, CUDA, OpenSSL,
// zstd.

#include <kvcache/chat.hpp>
#include <kvcache/eviction/all.hpp>
#include <kvcache/hash/all.hpp>
#include <kvcache/index/all.hpp>
#include <kvcache/locking/all.hpp>
#include <kvcache/observer/all.hpp>
#include <kvcache/recompute/all.hpp>
#include <kvcache/storage/all.hpp>
#include <kvcache/tier.hpp>
