// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <cstdint>

namespace kvcache::inline KVCACHE_ABI {

/// An access of a recorded workload to an object that stands for itself: a block of a disk, a file of a web cache.
struct object_access {
    double seconds = 0.0;    ///< When it came.
    std::uint64_t key = 0;   ///< Which object.
    std::uint64_t bytes = 1; ///< Its size, at least 1.
};

} // namespace kvcache
