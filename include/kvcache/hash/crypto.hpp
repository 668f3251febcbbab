// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/hash/all.hpp>
#include <kvcache/hash/sha256.hpp>

#include <tuple>

namespace kvcache::inline KVCACHE_ABI {

/// The hash policies that need the component crypto, behind those that do not.
using all_hash_policies = std::tuple<xxh3, sha256>;

} // namespace kvcache
