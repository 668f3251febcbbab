// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/kernel/strided_rows.hpp>

#include <cstddef>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Activations of a batch between two steps of a pass. The row stride avoids cache-set conflicts. (rows, columns)
class activations {
public:
    explicit activations(std::size_t columns) : columns_(columns), stride_(row_stride(columns)) {}

    /// Ensures memory for `rows` rows, whose content is undefined. Allocates only if it grows.
    void make_room(std::size_t rows) {
        if (numbers_.size() < rows * stride_)
            numbers_ = aligned_vector<float>(rows * stride_);
    }

    [[nodiscard]] std::size_t columns() const noexcept { return columns_; }
    [[nodiscard]] std::size_t stride() const noexcept { return stride_; }

    [[nodiscard]] std::span<float> row(std::size_t i) { return {numbers_.data() + i * stride_, columns_}; }

    /// The first rows, as input or output of a GEMM.
    [[nodiscard]] rows_in in(std::size_t rows) const { return {numbers_.data(), rows, stride_}; }
    [[nodiscard]] rows_out out() { return {numbers_.data(), stride_}; }

private:
    std::size_t columns_;
    std::size_t stride_;
    aligned_vector<float> numbers_;
};

}} // namespace kvcache
