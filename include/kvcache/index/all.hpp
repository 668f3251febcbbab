// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/index/chunk.hpp>
#include <kvcache/index/concept.hpp>
#include <kvcache/index/hash_chain.hpp>
#include <kvcache/index/radix.hpp>

#include <tuple>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Every index policy of the library, with its standard options.
using index_policies = std::tuple<index::radix, index::hash_chain, index::chunk>;

}} // namespace kvcache
