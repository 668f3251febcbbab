// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/hash/all.hpp>
#include <kvcache/hash/sha256.hpp>

#include <tuple>

namespace kvcache { inline namespace KVCACHE_ABI {

/// All hash policies, with those that need the component crypto last.
using all_hash_policies = std::tuple<hash::xxh3, hash::sha256>;

}} // namespace kvcache
