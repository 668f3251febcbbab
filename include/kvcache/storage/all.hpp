// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/storage/concept.hpp>
#include <kvcache/storage/counted.hpp>
#include <kvcache/storage/external.hpp>
#include <kvcache/storage/heap.hpp>
#include <kvcache/storage/huge_pages.hpp>
#include <kvcache/storage/mapped.hpp>
#include <kvcache/storage/zero_on_release.hpp>

#include <tuple>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Every storage policy of the library, with its standard options.
using storage_policies = std::tuple<storage::heap, storage::huge_pages, storage::mapped,
                                    storage::zero_on_release<storage::heap>, storage::counted<storage::heap>>;

}} // namespace kvcache
