// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <cstddef>
#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A page of keys and values in a page pool.
enum class page_id : std::uint32_t {};

/// A slot that an eviction policy ranks: a page, a session or a record of a tier.
enum class slot_id : std::uint32_t {};

/// A token of a tokenizer's vocabulary.
enum class token_id : std::int32_t {};

/// A layer of a model, counted from the input.
enum class layer_id : std::uint32_t {};

/// A KV head.
enum class head_id : std::uint32_t {};

/// The integer value of an identifier.
[[nodiscard]] constexpr std::uint32_t index_of(page_id page) noexcept {
    return static_cast<std::uint32_t>(page);
}
/// The number of a slot.
[[nodiscard]] constexpr std::uint32_t index_of(slot_id slot) noexcept {
    return static_cast<std::uint32_t>(slot);
}
/// The number of a token in its vocabulary.
[[nodiscard]] constexpr std::int32_t index_of(token_id token) noexcept {
    return static_cast<std::int32_t>(token);
}
/// The number of a layer, from 0.
[[nodiscard]] constexpr std::uint32_t index_of(layer_id layer) noexcept {
    return static_cast<std::uint32_t>(layer);
}
/// The number of a head, from 0.
[[nodiscard]] constexpr std::uint32_t index_of(head_id head) noexcept {
    return static_cast<std::uint32_t>(head);
}

/// One entry of a sequence's page table: the rows [first, first + count) of a page, in the sequence's order.
struct page_entry {
    page_id page = {};
    std::int64_t base = 0; ///< RoPE offset: keys are rotated by (position - base); zero for a prefix computed in place.
    std::uint32_t first = 0; ///< First row in use.
    std::uint32_t count = 0; ///< Number of rows in use.

    friend bool operator==(const page_entry&, const page_entry&) = default;
};

/// An entry of a sequence's page table that a commit changed, because another page has the same content.
struct moved_entry {
    std::size_t entry = 0; ///< Index in the page table.
    page_id from = {};
    page_id to = {};

    friend bool operator==(const moved_entry&, const moved_entry&) = default;
};

}} // namespace kvcache
