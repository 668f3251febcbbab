// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/tier/all.hpp>
#include <kvcache/tier/lmdb.hpp>

#include <tuple>

namespace kvcache::inline KVCACHE_ABI {

/// The tiers that need the component lmdb, behind those that do not.
using all_tier_policies = std::tuple<no_tier, memory<>, faulty<>, tiers<>, if_faster<>, lmdb<>>;

} // namespace kvcache
