// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/recompute/blend.hpp>
#include <kvcache/recompute/chunk_boundary.hpp>
#include <kvcache/recompute/chunk_head.hpp>
#include <kvcache/recompute/exact_prefix.hpp>
#include <kvcache/recompute/full.hpp>
#include <kvcache/recompute/gradual_blend.hpp>
#include <kvcache/recompute/none.hpp>

#include <tuple>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Every recompute policy of the library, with its standard options.
using recompute_policies =
    std::tuple<recompute::exact_prefix, recompute::none, recompute::chunk_boundary, recompute::chunk_head,
               recompute::blend, recompute::gradual_blend, recompute::full>;

}} // namespace kvcache
