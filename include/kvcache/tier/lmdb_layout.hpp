// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/little_endian.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace kvcache { inline namespace KVCACHE_ABI { namespace tier {

static_assert(sizeof(void*) == 8 && std::endian::native == std::endian::little,
              "an LMDB file has the layout of its machine, and the check of one knows that of 64-bit little-endian");

/// A table of a store, and the sizes of its keys and values; 0 for any.
struct lmdb_table {
    std::string_view name = {};
    std::size_t key_bytes = 0;
    std::size_t value_bytes = 0;
};

/// The byte layout of an LMDB 0.9 file (mdb.c: MDB_page, MDB_meta, MDB_db, MDB_node). All numbers are little-endian.
namespace lmdb_layout {

/// The size of a page's header, and offsets in it, in bytes.
/// @{
inline constexpr std::size_t page_header = 16, page_flags = 10, page_lower = 12, page_upper = 14, page_count = 12;
/// @}

/// Values of page_flags.
/// @{
inline constexpr std::uint16_t branch_page = 1, leaf_page = 2, overflow_page = 4, meta_page = 8;
/// @}

/// Flags of a node.
/// @{
inline constexpr std::uint16_t big_value = 1, nested_tree = 2;
/// @}

inline constexpr std::size_t node_header = 8;               ///< Bytes before the key of a node.
inline constexpr std::size_t tree_bytes = 48;               ///< Size of a stored tree.
inline constexpr std::uint64_t no_page = ~std::uint64_t{0}; ///< The root of an empty tree.
inline constexpr std::size_t deepest = 32;                  ///< Maximum depth of a tree (CURSOR_STACK).

/// The root of a B-tree and its counters.
struct tree {
    std::uint32_t page_bytes = 0; ///< Of the whole file, in the tree of free pages.
    std::uint16_t flags = 0;
    std::uint16_t depth = 0;
    std::uint64_t branches = 0, leaves = 0, overflows = 0; ///< Pages.
    std::uint64_t entries = 0;
    std::uint64_t root = no_page;
};

/// Requires: `bytes` has tree_bytes bytes from `at`.
[[nodiscard]] inline tree tree_at(std::span<const std::byte> bytes, std::size_t at) noexcept {
    const auto number = [&](std::size_t offset) { return load_little<std::uint64_t>(bytes, at + offset); };
    return {.page_bytes = load_little<std::uint32_t>(bytes, at),
            .flags = load_little<std::uint16_t>(bytes, at + 4),
            .depth = load_little<std::uint16_t>(bytes, at + 6),
            .branches = number(8),
            .leaves = number(16),
            .overflows = number(24),
            .entries = number(32),
            .root = number(40)};
}

/// One of the two meta pages; the newer one describes the store.
struct meta {
    static constexpr std::size_t bytes = page_header + 24 + 2 * tree_bytes + 16;
    std::uint64_t map_bytes = 0;
    tree free = {}, main = {};
    std::uint64_t last_page = 0;
    std::uint64_t transaction = 0;
};

/// Parses a meta page; none if it is none of this version, or maps at a fixed address. Requires: meta::bytes bytes.
[[nodiscard]] inline std::optional<meta> read_meta(std::span<const std::byte> page) noexcept {
    constexpr std::uint32_t magic = 0xBEEFC0DE, version = 1;
    constexpr std::uint16_t integer_keys = 8;
    constexpr std::size_t at = page_header, trees = at + 24, end = trees + 2 * tree_bytes;
    const meta made{.map_bytes = load_little<std::uint64_t>(page, at + 16),
                    .free = tree_at(page, trees),
                    .main = tree_at(page, trees + tree_bytes),
                    .last_page = load_little<std::uint64_t>(page, end),
                    .transaction = load_little<std::uint64_t>(page, end + 8)};
    const bool is = load_little<std::uint16_t>(page, page_flags) == meta_page &&
                    load_little<std::uint32_t>(page, at) == magic &&
                    load_little<std::uint32_t>(page, at + 4) == version && made.free.flags == integer_keys &&
                    made.main.flags == 0 && std::has_single_bit(made.free.page_bytes) && made.free.page_bytes >= 512 &&
                    made.free.page_bytes <= 65536;
    return is ? std::optional(made) : std::nullopt;
}

/// A node of a branch or a leaf page, in place.
struct node {
    std::uint16_t flags = 0;
    std::span<const std::byte> key = {};
    std::uint64_t child = 0;                ///< In a branch: the page below.
    std::uint32_t value_bytes = 0;          ///< In a leaf: the size of the value;
    std::span<const std::byte> inside = {}; ///< its bytes, or the number of its overflow page.
    std::size_t bytes = 0;                  ///< Of the node, rounded up to an even number.
};

/// Parses the node at an offset of a page; none if it does not end inside the page.
[[nodiscard]] inline std::optional<node> read_node(std::span<const std::byte> page, std::size_t at,
                                                   bool leaf) noexcept {
    if (at % 2 != 0 || at + node_header > page.size())
        return std::nullopt;
    const auto number = [&](std::size_t offset) { return load_little<std::uint16_t>(page, at + offset); };
    node made{.flags = number(4)};
    const std::size_t key = number(6), low = number(0) | std::size_t{number(2)} << 16;
    std::size_t size = node_header + key;
    const std::size_t inside = !leaf ? 0 : (made.flags & big_value) != 0 ? 8 : low;
    if (size + inside > page.size() - at)
        return std::nullopt;
    made.key = page.subspan(at + node_header, key);
    made.inside = page.subspan(at + size, inside);
    if (leaf)
        made.value_bytes = static_cast<std::uint32_t>(low);
    else
        made.child = low | std::uint64_t{made.flags} << 32;
    size += inside;
    made.bytes = size + size % 2;
    return made.bytes <= page.size() - at ? std::optional(made) : std::nullopt;
}

} // namespace lmdb_layout

}}} // namespace kvcache::tier
