// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/residual_page.hpp>
#include <kvcache/core/page_table.hpp>
#include <kvcache/storage/concept.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvcache::inline KVCACHE_ABI {

class rope;

/// Pages of one sequence, as attention reads them.
template <codec_state Codec, storage_state Storage>
struct paged_rows {
    const Codec* codec = nullptr;
    const Storage* storage = nullptr;
    std::span<const page_entry> table = {};
    /// Residual pages by table entry, for a codec of whole pages: the full-precision rows where a query of this
    /// sequence may read them. Null elsewhere; entries past its end count as null.
    std::span<const codec::residual_page* const> exact = {};
    bool spliced = false; ///< Rows of one page may be in several entries, and bases change often (see spliced_tiles).
};

/// Attention parameters of a model: its heads, and its rotation (null without RoPE).
struct attention_shape {
    std::uint32_t heads = 1;
    std::uint32_t kv_heads = 1;
    std::uint32_t head_dim = 64;
    float scale = 1.0f; ///< Factor of the scores, usually 1 / sqrt(head_dim).
    const rope* rotation = nullptr;

    /// Query heads for each KV head.
    [[nodiscard]] constexpr std::uint32_t group() const noexcept { return heads / kv_heads; }
};

/// Consecutive query rows of one sequence. (rows, heads, head_dim)
struct query_rows {
    const float* queries = nullptr;   ///< Before RoPE.
    const float* rotations = nullptr; ///< `rope::fill` of each row, for pages of base 0. (rows, 2, head_dim / 2)
    float* out = nullptr;             ///< Output. (rows, heads, head_dim)
    std::size_t stride = 0;           ///< Floats from one row of queries to the next.
    std::size_t out_stride = 0;
    std::size_t position = 0; ///< Position of the first row; each row attends to [0, its position].
    std::size_t rows = 0;
    const std::size_t* positions = nullptr; ///< Positions of the rows, ascending; null if consecutive.

    [[nodiscard]] std::size_t position_of(std::size_t row) const noexcept {
        return positions != nullptr ? positions[row] : position + row;
    }
};

/// Query rows and the pages they attend to.
template <codec_state Codec, storage_state Storage>
struct attention_part {
    paged_rows<Codec, Storage> pages;
    query_rows asked;
};

} // namespace kvcache
