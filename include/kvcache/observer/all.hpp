// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/observer/concept.hpp>
#include <kvcache/observer/counting.hpp>
#include <kvcache/observer/events.hpp>
#include <kvcache/observer/metrics.hpp>
#include <kvcache/observer/silent.hpp>
#include <kvcache/observer/tracing.hpp>

#include <tuple>

namespace kvcache::inline KVCACHE_ABI {

/// Every observer policy of the library, with its standard options.
using observer_policies = std::tuple<silent, counting, events, metrics, tracing>;

} // namespace kvcache
