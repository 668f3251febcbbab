// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/aligned.hpp>
#include <kvcache/kernel/strided_rows.hpp>

#include <algorithm>
#include <cstddef>
#include <span>

namespace kvcache::inline KVCACHE_ABI {

/// The numbers of a batch between two steps of a pass, on rows that do not compete for cache lines. (rows, columns)
class activations {
public:
    explicit activations(std::size_t columns) : columns_(columns), stride_(row_stride(columns)) {}

    /// Has memory for so many rows; what they hold is anything. Allocates only when there were never as many.
    void make_room(std::size_t rows) {
        if (numbers_.size() < rows * stride_)
            numbers_ = aligned_vector<float>(rows * stride_);
    }

    [[nodiscard]] std::size_t columns() const noexcept { return columns_; }
    [[nodiscard]] std::size_t stride() const noexcept { return stride_; }

    [[nodiscard]] std::span<float> row(std::size_t i) { return {numbers_.data() + i * stride_, columns_}; }

    /// The first rows, as a product reads or writes them.
    [[nodiscard]] rows_in in(std::size_t rows) const { return {numbers_.data(), rows, stride_}; }
    [[nodiscard]] rows_out out() { return {numbers_.data(), stride_}; }

private:
    std::size_t columns_;
    std::size_t stride_;
    aligned_vector<float> numbers_;
};

} // namespace kvcache
