// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/eviction/arc.hpp>
#include <kvcache/eviction/clock.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/cost_aware.hpp>
#include <kvcache/eviction/expiring.hpp>
#include <kvcache/eviction/fifo.hpp>
#include <kvcache/eviction/gdsf.hpp>
#include <kvcache/eviction/learned_reuse.hpp>
#include <kvcache/eviction/lfu.hpp>
#include <kvcache/eviction/lhd.hpp>
#include <kvcache/eviction/lirs.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/eviction/never.hpp>
#include <kvcache/eviction/prioritised.hpp>
#include <kvcache/eviction/s3_fifo.hpp>
#include <kvcache/eviction/sieve.hpp>
#include <kvcache/eviction/slru.hpp>
#include <kvcache/eviction/tail_safe_lru.hpp>
#include <kvcache/eviction/w_tiny_lfu.hpp>

#include <tuple>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Every eviction policy of the library, with its standard options; wrappers wrap lru.
using eviction_policies =
    std::tuple<eviction::learned_reuse, eviction::lru, eviction::fifo, eviction::lfu, eviction::slru, eviction::clock,
               eviction::sieve, eviction::s3_fifo, eviction::arc, eviction::lirs, eviction::w_tiny_lfu, eviction::gdsf,
               eviction::lhd, eviction::tail_safe_lru, eviction::cost_aware, eviction::never, eviction::prioritised<>,
               eviction::expiring<>>;

}} // namespace kvcache
