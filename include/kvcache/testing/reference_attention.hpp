// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/paged_attention.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/platform/standard.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A sequence as plain arrays, before RoPE: queries, and the keys and values of positions 0, 1, 2, ...
struct dense_attention {
    std::span<const float> queries = {}; ///< (rows, heads, head_dim)
    std::span<const float> keys = {};    ///< (tokens, kv_heads, head_dim)
    std::span<const float> values = {};  ///< (tokens, kv_heads, head_dim)
    std::size_t position = 0; ///< Position of the first query; each query attends to the positions up to its own.
};

namespace detail {

// A head in double, turned by position * frequency(i), pair (i, i + half).
inline void rotate_dense(const rope* rotation, std::size_t position, std::span<const float> head,
                         std::span<double> out) {
    ranges::copy(head, out.begin());
    if (rotation == nullptr)
        return;
    const std::size_t half = rotation->half();
    for (std::size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) * rotation->frequencies()[i];
        const double x = out[i], y = out[half + i];
        out[i] = x * std::cos(angle) - y * std::sin(angle);
        out[half + i] = y * std::cos(angle) + x * std::sin(angle);
    }
}

} // namespace detail

/// Returns attention in double precision by the definition: softmax(scale * q k) v over all positions a query attends
/// to, with keys and queries rotated by their positions. It is the reference for every attention kernel. (rows,
/// heads, head_dim) Requires: heads is a multiple of kv_heads, and the arrays hold the rows' positions.
[[nodiscard]] inline std::vector<double> reference_attention(const attention_shape& shape,
                                                             const dense_attention& dense) {
    const std::size_t dim = shape.head_dim, key_row = std::size_t{shape.kv_heads} * dim;
    const std::size_t query_row = std::size_t{shape.heads} * dim;
    const std::size_t rows = dense.queries.size() / query_row, tokens = dense.keys.size() / key_row;
    expects(shape.heads % shape.kv_heads == 0, "query heads share key heads evenly");
    expects(dense.values.size() == dense.keys.size() && dense.position + rows <= tokens,
            "dense keys and values reach the last row");

    std::vector<double> keys(tokens * key_row), out(rows * query_row), query(dim), weights(tokens);
    for (std::size_t head = 0; head < tokens * shape.kv_heads; ++head)
        detail::rotate_dense(shape.rotation, head / shape.kv_heads, dense.keys.subspan(head * dim, dim),
                             std::span(keys).subspan(head * dim, dim));

    for (std::size_t row = 0; row < rows; ++row)
        for (std::size_t head = 0; head < shape.heads; ++head) {
            const std::size_t seen = dense.position + row + 1, at = row * query_row + head * dim;
            const std::size_t kv = head / shape.group() * dim; // offset of its KV head in a row
            detail::rotate_dense(shape.rotation, seen - 1, dense.queries.subspan(at, dim), query);
            double largest = shape.sinks == nullptr ? -std::numeric_limits<double>::infinity()
                                                    : static_cast<double>(shape.sinks[head]);
            const std::size_t from = shape.first_read(seen - 1);
            for (std::size_t t = from; t < seen; ++t) {
                double score = 0.0;
                for (std::size_t d = 0; d < dim; ++d)
                    score += query[d] * keys[t * key_row + kv + d];
                weights[t] = score * static_cast<double>(shape.scale);
                if (const double cap = static_cast<double>(shape.soft_cap); cap > 0.0)
                    weights[t] = cap * std::tanh(weights[t] / cap);
                largest = std::max(largest, weights[t]);
            }
            double total = shape.sinks == nullptr ? 0.0 : std::exp(static_cast<double>(shape.sinks[head]) - largest);
            for (std::size_t t = from; t < seen; ++t) {
                weights[t] = std::exp(weights[t] - largest);
                total += weights[t];
                for (std::size_t d = 0; d < dim; ++d)
                    out[at + d] += weights[t] * static_cast<double>(dense.values[t * key_row + kv + d]);
            }
            for (std::size_t d = 0; d < dim; ++d)
                out[at + d] /= total;
        }
    return out;
}

}} // namespace kvcache
