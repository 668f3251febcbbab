// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/recompute/blend.hpp>
#include <kvcache/recompute/concept.hpp>
#include <kvcache/recompute/everything.hpp>
#include <kvcache/recompute/exact_prefix.hpp>
#include <kvcache/recompute/gradual_blend.hpp>
#include <kvcache/recompute/head.hpp>
#include <kvcache/recompute/none.hpp>
#include <kvcache/recompute/seam.hpp>

#include <tuple>

namespace kvcache::inline KVCACHE_ABI {

/// Every recompute policy of the library, with its standard options.
using recompute_policies = std::tuple<exact_prefix, none, seam, head, blend, gradual_blend, everything>;

} // namespace kvcache
