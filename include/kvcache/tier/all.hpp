// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/tier/chain.hpp>
#include <kvcache/tier/concept.hpp>
#include <kvcache/tier/faulty.hpp>
#include <kvcache/tier/if_faster.hpp>
#include <kvcache/tier/memory.hpp>
#include <kvcache/tier/no_tier.hpp>

#include <tuple>

namespace kvcache::inline KVCACHE_ABI {

/// Every tier that needs no library of its own, with its standard options.
using tier_policies = std::tuple<no_tier, memory<>, faulty<>, tiers<>, if_faster<>>;

} // namespace kvcache
