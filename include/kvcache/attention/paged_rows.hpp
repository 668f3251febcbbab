// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/exact_page.hpp>
#include <kvcache/core/page_table.hpp>
#include <kvcache/storage/concept.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvcache::inline KVCACHE_ABI {

class rope;

/// The pages of one sequence as attention reads them.
template <codec_state Codec, storage_state Storage>
struct paged_rows {
    const Codec* codec = nullptr;
    const Storage* storage = nullptr;
    std::span<const page_entry> table = {};
    /// By entry, for a codec of whole pages: the rows as they were computed, where a query of this sequence may read
    /// them; null elsewhere, and behind the last.
    std::span<const exact_page* const> exact = {};
    bool woven = false; ///< Rows of one page may stand in several entries, and bases change often (see woven_tiles).
};

/// How a model attends: its heads, and its rotation (null for a model without one).
struct attention_shape {
    std::uint32_t heads = 1;
    std::uint32_t kv_heads = 1;
    std::uint32_t head_dim = 64;
    float scale = 1.0f; ///< What scores are multiplied by, usually 1 / sqrt(head_dim).
    const rope* rotation = nullptr;

    /// Query heads that read one key and value head.
    [[nodiscard]] constexpr std::uint32_t group() const noexcept { return heads / kv_heads; }
};

/// Consecutive rows of one sequence that ask. (rows, heads, head_dim)
struct query_rows {
    const float* queries = nullptr; ///< Not rotated.
    const float* rotations =
        nullptr;            ///< `rope::fill` of each row's position, for pages of base 0. (rows, 2, head_dim / 2)
    float* out = nullptr;   ///< Written. (rows, heads, head_dim)
    std::size_t stride = 0; ///< Numbers from one row of queries to the next.
    std::size_t out_stride = 0;
    std::size_t position = 0; ///< Of the first row; each row attends to [0, its position].
    std::size_t rows = 0;
    const std::size_t* positions = nullptr; ///< Of each row, ascending, where they are not consecutive.

    [[nodiscard]] std::size_t position_of(std::size_t row) const noexcept {
        return positions != nullptr ? positions[row] : position + row;
    }
};

/// Rows that ask, and the pages they ask.
template <codec_state Codec, storage_state Storage>
struct attention_part {
    paged_rows<Codec, Storage> pages;
    query_rows asked;
};

} // namespace kvcache
