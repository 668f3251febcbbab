// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/hash/concept.hpp>
#include <kvcache/hash/xxh3.hpp>

#include <tuple>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Every hash policy of the library, with its standard options.
using hash_policies = std::tuple<hash::xxh3>;

}} // namespace kvcache
