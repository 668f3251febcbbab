// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/identity.hpp>
#include <kvcache/core/shape.hpp>

#include <cstddef>

namespace kvcache { inline namespace KVCACHE_ABI {

/// What a cache is opened for.
struct cache_config {
    page_shape shape;
    cache_limits limit = {};
    identity id = {};        ///< Everything else that determines a page's bits.
    std::size_t tenants = 0; ///< The maximum number of tenants; 0 for a cache without tenants.
};

}} // namespace kvcache
