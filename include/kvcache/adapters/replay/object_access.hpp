// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI {

/// An access of a recorded workload to an independent object: a disk block, a file in a web cache.
struct object_access {
    double seconds = 0.0;    ///< Time of the access.
    std::uint64_t key = 0;   ///< Identifies the object.
    std::uint64_t bytes = 1; ///< Size of the object, at least 1.
};

}} // namespace kvcache
