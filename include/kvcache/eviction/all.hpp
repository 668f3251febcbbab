// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/lru.hpp>

#include <tuple>

namespace kvcache {

/// Every eviction policy of the library, with its standard options.
using eviction_policies = std::tuple<lru>;

} // namespace kvcache
