// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/storage/concept.hpp>
#include <kvcache/storage/counted_storage.hpp>
#include <kvcache/storage/failing.hpp>
#include <kvcache/storage/heap.hpp>
#include <kvcache/storage/huge_pages.hpp>
#include <kvcache/storage/mapped.hpp>
#include <kvcache/storage/zeroising.hpp>

#include <tuple>

namespace kvcache::inline KVCACHE_ABI {

/// Every storage policy of the library, with its standard options.
using storage_policies = std::tuple<heap, huge_pages, mapped, zeroising<heap>, counted_storage<heap>, failing<heap>>;

} // namespace kvcache
