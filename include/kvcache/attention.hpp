// SPDX-License-Identifier: MIT
#pragma once

// Attention over pages, and every codec. Needs Eigen, xsimd and fused multiply-adds (-march=native or x86-64-v3).

#if __cplusplus < 202002L
#error "kvcache: C++20 is needed; compile with -std=c++20"
#else
#include <kvcache/attention/batch_attention.hpp>
#include <kvcache/attention/paged_attention.hpp>
#include <kvcache/cache.hpp>
#include <kvcache/codec/all.hpp>
#include <kvcache/kernel/rope.hpp>
#include <kvcache/kernel/thread_pool.hpp>
#endif
