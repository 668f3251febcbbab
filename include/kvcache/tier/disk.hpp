// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/tier/all.hpp>
#include <kvcache/tier/lmdb.hpp>

#include <tuple>

namespace kvcache { inline namespace KVCACHE_ABI {

/// All tiers, including those that need the component lmdb.
using all_tier_policies =
    std::tuple<tier::none, tier::memory<>, tier::fault_injecting<>, tier::chain<>, tier::cost_gated<>, tier::lmdb<>>;

}} // namespace kvcache
