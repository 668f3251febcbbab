// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/residual_page.hpp>
#include <kvcache/storage/concept.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

class rope;

/// Attention parameters of a model's layers that attend alike: their heads, their rotation (null without RoPE), and
/// what a query reads.
struct attention_shape {
    std::uint32_t heads = 1;
    std::uint32_t kv_heads = 1;
    std::uint32_t head_dim = 64;
    float scale = 1.0f; ///< Factor of the scores, usually 1 / sqrt(head_dim).
    const rope* rotation = nullptr;
    /// Tokens that a query reads, its own included; 0 for all. Page-table entries before the windows of all queries are
    /// not read: their pages need not exist.
    std::uint32_t window = 0;
    /// Logit soft-capping: a score becomes soft_cap * tanh(score / soft_cap) (Gemma 2); 0 for none.
    float soft_cap = 0.0f;
    /// Learned attention sinks: a logit of each head that takes part in the softmax and has no value (gpt-oss); null
    /// for none. (layers, heads)
    const float* sinks = nullptr;

    /// Query heads for each KV head.
    [[nodiscard]] constexpr std::uint32_t group() const noexcept { return heads / kv_heads; }
    /// The first position that the query at a position reads.
    [[nodiscard]] constexpr std::size_t first_read(std::size_t position) const noexcept {
        return window == 0 || position < window ? 0 : position + 1 - window;
    }
    /// Whether a query reads all positions before it, and nothing but their keys and values.
    [[nodiscard]] constexpr bool plain() const noexcept { return window == 0 && soft_cap == 0.0f && sinks == nullptr; }
};

/// The storage that holds the pages of a batch, and the codec that reads them. One for all sequences of a cache, since
/// they share pages by id.
template <codec_state Codec, storage_state Storage>
struct page_source {
    const Codec* codec = nullptr;
    const Storage* storage = nullptr;

    page_source() = default;
    page_source(const Codec& by, const Storage& in) noexcept : codec(&by), storage(&in) {}
    /// The source of a cache's pages, from the cache or a lease of it.
    template <class Cache>
    explicit page_source(const Cache& of) noexcept : page_source(of.codec(), of.storage()) {}
};
template <class Cache>
page_source(const Cache&) -> page_source<std::remove_cvref_t<decltype(std::declval<const Cache&>().codec())>,
                                         std::remove_cvref_t<decltype(std::declval<const Cache&>().storage())>>;

/// Consecutive query rows of one sequence. (rows, heads, head_dim)
struct query_rows {
    const float* data = nullptr;      ///< Before RoPE.
    const float* rotations = nullptr; ///< `rope::fill` of each row, for pages of base 0. (rows, 2, head_dim / 2)
    float* out = nullptr;             ///< Output. (rows, heads, head_dim)
    std::size_t stride = 0;           ///< Floats from one row of queries to the next.
    std::size_t out_stride = 0;
    std::size_t position = 0; ///< Position of the first row; each row attends to the positions up to its own.
    std::size_t rows = 0;
    const std::size_t* positions = nullptr; ///< Positions of the rows, ascending; null if consecutive.

    [[nodiscard]] std::size_t position_of(std::size_t row) const noexcept {
        return positions != nullptr ? positions[row] : position + row;
    }
};

/// One sequence of a batch: its query rows, and the pages they attend to.
struct attention_part {
    sequence_pages pages;
    query_rows queries;
};

}} // namespace kvcache
