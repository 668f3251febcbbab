// SPDX-License-Identifier: MIT
#pragma once

// The cache alone, with the standard policy of every role: pages, index, sequences, leases.
// Needs xxHash, and no Eigen, no xsimd, no compiler flag, no exceptions and no RTTI. A policy has a header of its own,
// <kvcache/eviction/s3_fifo.hpp>; all of a role are in <kvcache/eviction/all.hpp>.

#if __cplusplus < 202002L
#error "kvcache: C++20 is needed; compile with -std=c++20"
#else
#include <kvcache/cache/compose.hpp>
#include <kvcache/core/abi.hpp>
#endif
