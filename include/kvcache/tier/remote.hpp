// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/tier/redis.hpp>

#include <tuple>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The tiers that need the component redis.
using remote_tier_policies = std::tuple<tier::redis>;

}} // namespace kvcache
