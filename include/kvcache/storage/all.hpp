// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/platform/machine.hpp>
#include <kvcache/storage/concept.hpp>
#include <kvcache/storage/counted.hpp>
#include <kvcache/storage/external.hpp>
#include <kvcache/storage/heap.hpp>
#include <kvcache/storage/huge_pages.hpp>
#include <kvcache/storage/mapped.hpp>
#include <kvcache/storage/zero_on_release.hpp>

#include <tuple>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Every storage policy of the library that this system has, with its standard options.
using storage_policies = std::tuple<storage::heap,
#if KVCACHE_POSIX
                                    storage::huge_pages, storage::mapped,
#endif
                                    storage::zero_on_release<storage::heap>, storage::counted<storage::heap>>;

}} // namespace kvcache
