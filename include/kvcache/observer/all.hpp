// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/observer/calling.hpp>
#include <kvcache/observer/concept.hpp>
#include <kvcache/observer/counting.hpp>
#include <kvcache/observer/events.hpp>
#include <kvcache/observer/metrics.hpp>
#include <kvcache/observer/none.hpp>
#include <kvcache/observer/tracing.hpp>

#include <tuple>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Every observer policy of the library, with its default options.
using observer_policies = std::tuple<observer::none, observer::calling, observer::counting, observer::events,
                                     observer::metrics, observer::tracing>;

}} // namespace kvcache
