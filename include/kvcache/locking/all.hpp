// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/locking/concept.hpp>
#include <kvcache/locking/mutex.hpp>
#include <kvcache/locking/none.hpp>

#include <tuple>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Every locking policy of the library, with its default options.
using locking_policies = std::tuple<locking::none, locking::mutex>;

}} // namespace kvcache
