// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/storage/concept.hpp>
#include <kvcache/storage/failing.hpp>
#include <kvcache/storage/heap.hpp>

#include <tuple>

namespace kvcache {

/// Every storage policy of the library, with its standard options.
using storage_policies = std::tuple<heap, failing<heap>>;

} // namespace kvcache
