// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/little_endian.hpp>
#include <kvcache/core/platform/file_lock.hpp>
#include <kvcache/core/platform/standard.hpp>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#if !KVCACHE_POSIX
#error "kvcache: tier::lmdb needs the file locks of POSIX, which this system lacks: use tier::memory"
#endif

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

/// Checks the structure of an LMDB file before LMDB maps it, because LMDB trusts its file: a wrong page number makes it
/// crash, loop or overwrite records. Every page of every tree is read with pread and visited once: its number, type and
/// nodes, the order and bounds of its keys, the counters of its tree. No page may be used twice, or be used and free.
/// The bytes of large values are not read; a record's reader verifies them.
class lmdb_check {
public:
    /// Checks an open file with these tables. An empty file is a new store. Requires: no process writes the file.
    /// Errors: malformed, with the page; io. Throws: bad_alloc. Cost: reads the pages of the trees, and 16 bytes of
    /// each large value.
    [[nodiscard]] static result<void> run(const platform::descriptor& file, std::span<const lmdb_table> tables) {
        return lmdb_check(file, tables).check();
    }

private:
    using bytes = std::vector<std::byte>;
    using tree = lmdb_layout::tree;

    // What the nodes of a tree hold.
    enum class content { free_pages, tables, records };
    struct walk {
        content holds = content::records;
        lmdb_table table = {};
        tree found = {.branches = 0, .leaves = 0, .overflows = 0, .entries = 0}; // counted on the way
    };
    // The keys of a page are at least `low`, and less than `high` unless it is empty.
    struct bounds {
        std::string low, high;
    };

    lmdb_check(const platform::descriptor& file, std::span<const lmdb_table> tables) : file_(file), tables_(tables) {}

    [[nodiscard]] static error damaged(const std::string& where, const char* what) {
        return {error_code::malformed, "data.mdb", "data.mdb is damaged: " + where + ' ' + what};
    }
    [[nodiscard]] static error damaged(std::uint64_t page, const char* what) {
        return damaged("page " + std::to_string(page), what);
    }

    [[nodiscard]] result<void> read(std::uint64_t page, std::size_t offset, std::span<std::byte> to) const {
        for (std::size_t done = 0; done < to.size();) {
            const auto got = platform::read_at(file_, page * page_bytes_ + offset + done, to.subspan(done));
            if (got == 0)
                return damaged(page, "is past the end of the file");
            if (got < 0 && errno != EINTR)
                return error{error_code::io, "data.mdb",
                             std::string("data.mdb cannot be read: ") + std::generic_category().message(errno)};
            done += got < 0 ? 0 : static_cast<std::size_t>(got);
        }
        return {};
    }

    [[nodiscard]] result<void> check() {
        const auto status = platform::status_of(file_.number());
        if (!status)
            return error{error_code::io, "data.mdb", "data.mdb has no readable status"};
        if (status->size == 0)
            return {};
        const auto now = newer_meta();
        if (!now)
            return now.error();
        page_bytes_ = now->free.page_bytes;
        // The last pages of a transaction are not written if it frees them again; no transaction is near 1 GiB.
        const std::uint64_t file_pages = status->size / page_bytes_;
        if (now->last_page < 1 || now->last_page > file_pages + (std::uint64_t{1} << 30) / page_bytes_)
            return damaged("a meta page", "has a number of pages that the file cannot have");
        if (now->map_bytes / page_bytes_ <= now->last_page || now->map_bytes > std::uint64_t{1} << 46)
            return damaged("a meta page", "has a map that cannot hold the file");
        known_.assign(now->last_page + 1, false);
        known_[0] = known_[1] = true;
        transaction_ = now->transaction;
        found_ = {{{.holds = content::free_pages}, now->free}, {{.holds = content::tables}, now->main}};
        for (std::size_t i = 0; i < found_.size(); ++i) { // the tables add theirs
            const auto [holds, root] = found_[i];
            if (auto fine = check_tree(root, holds); !fine)
                return fine;
        }
        if (!known_.back())
            return damaged(now->last_page, "is the last one, and neither used nor free");
        return {};
    }

    // Each transaction overwrites the meta page of the one before the last, so that their numbers are consecutive.
    [[nodiscard]] result<lmdb_layout::meta> newer_meta() {
        lmdb_layout::meta both[2];
        for (std::size_t i = 0; i < 2; ++i) {
            bytes page(lmdb_layout::meta::bytes);
            if (auto fine = read(i, 0, page); !fine)
                return fine.error();
            const auto one = lmdb_layout::read_meta(page);
            if (!one || (i == 1 && one->free.page_bytes != page_bytes_))
                return damaged(i, "is no meta page of this format");
            both[i] = *one;
            page_bytes_ = one->free.page_bytes;
        }
        const std::uint64_t even = both[0].transaction, odd = both[1].transaction;
        if (even + odd != 0 && (even % 2 != 0 || odd % 2 != 1 || (even + 1 != odd && odd + 1 != even)))
            return damaged("a meta page", "has the number of another transaction");
        return both[even < odd ? 1 : 0];
    }

    // Marks pages as used or free.
    [[nodiscard]] result<void> mark(std::uint64_t first, std::uint64_t count) {
        if (first >= known_.size() || count > known_.size() - first)
            return damaged(first, "is past the last page");
        for (std::uint64_t page = first; page < first + count; ++page) {
            if (known_[page])
                return damaged(page, "is used twice");
            known_[page] = true;
        }
        return {};
    }

    [[nodiscard]] result<void> check_tree(const tree& root, walk of) {
        const bool empty = root.root == lmdb_layout::no_page;
        if (root.depth > lmdb_layout::deepest || empty != (root.depth == 0))
            return damaged(root.root, "is the root of a tree of a wrong depth");
        if (!empty)
            if (auto fine = check_page(root.root, root.depth, {}, of); !fine)
                return fine;
        if (of.found.branches != root.branches || of.found.leaves != root.leaves ||
            of.found.overflows != root.overflows || of.found.entries != root.entries)
            return damaged(root.root, "is the root of a tree with wrong counters");
        return {};
    }

    // A key as a text of the same order.
    [[nodiscard]] static std::string key_of(const lmdb_layout::node& one, const walk& of) {
        std::string key(reinterpret_cast<const char*>(one.key.data()), one.key.size());
        if (of.holds == content::free_pages) // an integer
            ranges::reverse(key);
        return key;
    }

    // Checks a page `height` levels above the ground, where leaves have height 1, and the pages below it.
    [[nodiscard]] result<void> check_page(std::uint64_t at, std::size_t height, const bounds& within, walk& of) {
        if (auto fine = mark(at, 1); !fine)
            return fine;
        bytes page(page_bytes_);
        if (auto fine = read(at, 0, page); !fine)
            return fine;
        const bool leaf = height == 1;
        const auto nodes = nodes_of(at, page, leaf);
        if (!nodes)
            return nodes.error();
        // LMDB asserts that a branch has two nodes, except in the tree of free pages.
        if (!leaf && nodes->size() < 2 && of.holds != content::free_pages)
            return damaged(at, "is a branch of one page");
        ++(leaf ? of.found.leaves : of.found.branches);
        std::vector<std::string> keys;
        for (std::size_t i = 0; i < nodes->size(); ++i) {
            keys.push_back(leaf || i > 0 ? key_of((*nodes)[i], of) : within.low); // LMDB ignores a branch's first
            if (keys[i] < within.low || (!within.high.empty() && keys[i] >= within.high) ||
                (i > 0 && keys[i] <= keys[i - 1]))
                return damaged(at, "has keys out of order");
        }
        for (std::size_t i = 0; i < nodes->size(); ++i)
            if (auto fine = leaf ? check_entry(at, (*nodes)[i], of)
                                 : check_page((*nodes)[i].child, height - 1,
                                              {keys[i], i + 1 < keys.size() ? keys[i + 1] : within.high}, of);
                !fine)
                return fine;
        return {};
    }

    // Parses the nodes of a page, which fill its upper part without gaps.
    [[nodiscard]] static result<std::vector<lmdb_layout::node>> nodes_of(std::uint64_t at, const bytes& page,
                                                                         bool leaf) {
        namespace is = lmdb_layout;
        const std::size_t lower = load_little<std::uint16_t>(page, is::page_lower);
        const std::size_t upper = load_little<std::uint16_t>(page, is::page_upper);
        if (load_little<std::uint64_t>(page, 0) != at ||
            load_little<std::uint16_t>(page, is::page_flags) != (leaf ? is::leaf_page : is::branch_page))
            return damaged(at, "is not the page that its tree needs");
        if (lower <= is::page_header || lower % 2 != 0 || lower > upper || upper > page.size())
            return damaged(at, "has a wrong number of nodes");
        std::vector<is::node> nodes;
        std::vector<std::pair<std::size_t, std::size_t>> places; // offset, end
        for (std::size_t i = is::page_header; i < lower; i += 2) {
            const std::size_t offset = load_little<std::uint16_t>(page, i);
            const auto one = is::read_node(page, offset, leaf);
            if (!one)
                return damaged(at, "has a node outside of it");
            nodes.push_back(*one);
            places.emplace_back(offset, offset + one->bytes);
        }
        ranges::sort(places);
        std::size_t end = upper;
        for (const auto& [begins, ends] : places)
            if (std::exchange(end, ends) != begins)
                return damaged(at, "has nodes that overlap");
        return end == page.size() ? result(std::move(nodes)) : damaged(at, "has nodes that end early");
    }

    [[nodiscard]] result<void> check_entry(std::uint64_t at, const lmdb_layout::node& one, walk& of) {
        ++of.found.entries;
        const bool big = one.flags == lmdb_layout::big_value;
        std::uint64_t first = 0;
        if (big) {
            first = load_little<std::uint64_t>(one.inside, 0);
            if (auto fine = check_large_value(first, one.value_bytes, of); !fine)
                return fine;
        }
        switch (of.holds) {
        case content::free_pages: {
            if (one.key.size() != 8 || (!big && one.flags != 0))
                return damaged(at, "has no list of free pages");
            bytes list(one.value_bytes);
            if (!big)
                ranges::copy(one.inside, list.begin());
            else if (auto fine = read(first, lmdb_layout::page_header, list); !fine)
                return fine;
            const auto transaction = load_little<std::uint64_t>(one.key, 0);
            return transaction > 0 && transaction <= transaction_ ? mark_free(at, list)
                                                                  : damaged(at, "frees pages of no transaction");
        }
        case content::tables: {
            const std::string_view name(reinterpret_cast<const char*>(one.key.data()), one.key.size());
            const auto table = ranges::find(tables_, name, &lmdb_table::name);
            if (table == tables_.end() || one.flags != lmdb_layout::nested_tree ||
                one.value_bytes != lmdb_layout::tree_bytes)
                return damaged(at, "has a table that this store has not");
            found_.push_back({{.table = *table}, lmdb_layout::tree_at(one.inside, 0)});
            return found_.back().second.flags == 0 ? result<void>() : damaged(at, "has a table of another kind");
        }
        case content::records:
            if ((!big && one.flags != 0) || one.key.empty() ||
                (of.table.key_bytes != 0 && one.key.size() != of.table.key_bytes) ||
                (of.table.value_bytes != 0 && one.value_bytes != of.table.value_bytes))
                return damaged(at, "has an entry of a wrong size");
        }
        return {};
    }

    [[nodiscard]] result<void> check_large_value(std::uint64_t first, std::size_t size, walk& of) {
        namespace is = lmdb_layout;
        if (first >= known_.size()) // its offset in the file might overflow
            return damaged(first, "is past the last page");
        std::byte header[is::page_header], last[1];
        if (auto fine = read(first, 0, header); !fine)
            return fine;
        const std::uint64_t pages = load_little<std::uint32_t>(header, is::page_count);
        if (load_little<std::uint64_t>(header, 0) != first ||
            load_little<std::uint16_t>(header, is::page_flags) != is::overflow_page ||
            pages * page_bytes_ < size + is::page_header)
            return damaged(first, "is not the large value that its tree needs");
        if (auto fine = mark(first, pages); !fine)
            return fine;
        of.found.overflows += pages;
        return read(first + pages - 1, page_bytes_ - 1, last);
    }

    // A list is its length and as many pages in descending order.
    [[nodiscard]] result<void> mark_free(std::uint64_t at, std::span<const std::byte> list) {
        if (list.size() < 8 || load_little<std::uint64_t>(list, 0) > list.size() / 8 - 1)
            return damaged(at, "has a list of free pages of a wrong length");
        const std::uint64_t length = load_little<std::uint64_t>(list, 0);
        std::uint64_t before = known_.size();
        for (std::uint64_t i = 1; i <= length; ++i) {
            const auto page = load_little<std::uint64_t>(list, 8 * i);
            if (page >= before)
                return damaged(at, "has a list of free pages out of order");
            if (auto fine = mark(page, 1); !fine)
                return fine;
            before = page;
        }
        return {};
    }

    const platform::descriptor& file_;
    std::span<const lmdb_table> tables_;
    std::uint64_t page_bytes_ = 0;
    std::uint64_t transaction_ = 0;
    std::vector<bool> known_;                  // by page: used or free
    std::vector<std::pair<walk, tree>> found_; // trees to check
};

}}} // namespace kvcache::tier
