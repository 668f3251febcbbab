// SPDX-License-Identifier: MIT
#pragma once

// GCC 12 sees uninitialised values inside its own AVX-512 intrinsics, wherever they are inlined.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <Eigen/Core>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include <cstddef>
#include <span>

namespace kvcache {

/// A dense row-major matrix of float32. (rows, columns)
using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Somebody else's row-major matrix, to read. (rows, columns)
using matrix_view = Eigen::Ref<const matrix>;

/// Row `row` of `m` as contiguous numbers. (columns)
[[nodiscard]] inline std::span<const float> row_of(const matrix& m, std::size_t row) {
    return {m.data() + row * static_cast<std::size_t>(m.cols()), static_cast<std::size_t>(m.cols())};
}
[[nodiscard]] inline std::span<float> row_of(matrix& m, std::size_t row) {
    return {m.data() + row * static_cast<std::size_t>(m.cols()), static_cast<std::size_t>(m.cols())};
}

} // namespace kvcache
