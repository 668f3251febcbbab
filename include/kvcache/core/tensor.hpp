// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/platform/machine.hpp>

#include <Eigen/Core>

#include <cstddef>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A dense row-major matrix of float32. (rows, columns)
using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Row `row` of `m` as contiguous values. (columns)
[[nodiscard]] inline std::span<const float> row_of(const matrix& m, std::size_t row) {
    return {m.data() + row * static_cast<std::size_t>(m.cols()), static_cast<std::size_t>(m.cols())};
}
/// A row of a matrix, to write to.
[[nodiscard]] inline std::span<float> row_of(matrix& m, std::size_t row) {
    return {m.data() + row * static_cast<std::size_t>(m.cols()), static_cast<std::size_t>(m.cols())};
}

}} // namespace kvcache
