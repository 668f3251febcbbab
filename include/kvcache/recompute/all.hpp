// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/recompute/concept.hpp>
#include <kvcache/recompute/exact_prefix.hpp>

#include <tuple>

namespace kvcache {

/// Every recompute policy of the library, with its standard options.
using recompute_policies = std::tuple<exact_prefix>;

} // namespace kvcache
