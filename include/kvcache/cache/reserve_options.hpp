// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <cstddef>
#include <limits>

namespace kvcache { inline namespace KVCACHE_ABI {

/// How rows are reserved.
struct reserve_options {
    /// Rows that are written and attended at a time, at most, in ascending order. A codec that quantizes whole pages
    /// keeps no more of them in full precision.
    std::size_t at_once = std::numeric_limits<std::size_t>::max();
};

}} // namespace kvcache
