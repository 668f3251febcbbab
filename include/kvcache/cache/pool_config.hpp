// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/shape.hpp>

#include <cstddef>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The memory of a cache's pages.
struct pool_config {
    page_shape shape;
    std::size_t pages = 0;
    std::size_t page_bytes = 0;
    std::size_t tenants = 0; ///< The maximum number of tenants.
};

}} // namespace kvcache
