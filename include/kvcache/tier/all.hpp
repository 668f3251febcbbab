// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/tier/chain.hpp>
#include <kvcache/tier/compressed.hpp>
#include <kvcache/tier/concept.hpp>
#include <kvcache/tier/cost_gated.hpp>
#include <kvcache/tier/memory.hpp>
#include <kvcache/tier/none.hpp>

#include <tuple>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Every tier that needs no external library, with its default options.
using tier_policies = std::tuple<tier::none, tier::memory<>, tier::chain<>, tier::compressed<>, tier::cost_gated<>>;

}} // namespace kvcache
