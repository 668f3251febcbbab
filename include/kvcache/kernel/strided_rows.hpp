// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <cstddef>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Rows of activations with a fixed stride. (rows, columns)
struct rows_in {
    const float* data = nullptr;
    std::size_t rows = 0;
    std::size_t stride = 0; ///< Floats from one row to the next.
};

/// Rows that are written, or sums that are continued, with a fixed stride. (rows, columns)
struct rows_out {
    float* data = nullptr;
    std::size_t stride = 0; ///< Floats from one row to the next.
};

/// Consecutive rows [first, last).
struct row_range {
    std::size_t first = 0;
    std::size_t last = 0;

    [[nodiscard]] constexpr std::size_t size() const noexcept { return last - first; }
};

/// Row stride for `columns` floats with which adjacent rows do not map to the same cache sets.
[[nodiscard]] constexpr std::size_t row_stride(std::size_t columns) noexcept {
    return ((columns + 15) / 16 | 1) * 16;
}

}} // namespace kvcache
