// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/attention_part.hpp>
#include <kvcache/attention/query_block.hpp>
#include <kvcache/core/abi.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/platform/standard.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Consecutive rows of one part that are scheduled together, with all query heads of a KV head.
struct query_tile {
    static constexpr std::size_t none = static_cast<std::size_t>(-1);

    std::uint32_t part = 0;
    std::size_t first = 0; ///< First row, within the part.
    std::size_t rows = 0;
    std::size_t end = 0;          ///< Positions that its last row sees.
    std::size_t queries = 0;      ///< Queries in all groups before it; query `queries + i` is its i-th.
    std::size_t partials = none;  ///< Index of its first softmax partial, if several work items compute its output.
    std::size_t same_entries = 0; ///< Leading page-table entries equal to those of the group before.
};

/// Page-table entries that the query tiles [first_query_tile, last_query_tile) have in common.
struct page_range {
    std::uint32_t part = 0; ///< Part whose table holds the entries.
    std::size_t first = 0;  ///< Entries [first, last).
    std::size_t last = 0;
    std::size_t position = 0; ///< Position of the first row of the first entry.
    std::size_t first_query_tile = 0;
    std::size_t last_query_tile = 0;
};

/// Query tiles [first_query_tile, last_query_tile) over the splits [first_split, last_split), range by range, for one
/// thread.
struct work_item {
    std::size_t first_range = 0;
    std::size_t last_range = 0;
    std::size_t first_query_tile = 0;
    std::size_t last_query_tile = 0;
    std::size_t first_split = 0;
    std::size_t last_split = 0;
    std::size_t cost = 0; ///< Approximate cost, in queries times positions.
};

/// Schedule of the attention of a batch: which query rows attend to which pages, in which order. One plan serves all
/// layers and heads.
///
/// Rows whose page tables have a common prefix form a tree (as in Juravsky et al. 2024 and Ye et al. 2024): the common
/// pages are read once for all of these rows, and each row then continues with its own pages. Long contexts are cut at
/// the fixed splits, and rows into blocks, until there are enough work items for the threads; the last items are small.
/// The plan never changes a bit of the result.
class attention_plan {
public:
    /// Positions of a spliced table that are read together, base by base. A split is a multiple of it.
    static constexpr std::size_t spliced_block = 64;
    static_assert(query_block::split % spliced_block == 0);

    /// Maximum number of queries of one work item; more only if the query heads of a single row exceed it.
    static constexpr std::size_t most_queries = 72;

    /// Rebuilds the plan and reuses its memory. Cost: O(parts log parts + work items) walks along page tables.
    void build(std::span<const attention_part> parts, const attention_shape& shape, std::size_t threads) {
        const std::size_t kv_heads = shape.kv_heads;
        parts_ = parts;
        shape_ = shape;
        group_ = shape.group();
        work_items_.clear();
        page_ranges_.clear();
        partials_ = 0;
        make_query_tiles(kv_heads, threads);
        target_ = query_tile::none;
        if (threads > 1) {
            const std::size_t all = for_roots([&](std::size_t first, std::size_t last) {
                const std::size_t cost = place(first, last, {0, splits(first, last)});
                page_ranges_.clear();
                return cost;
            });
            target_ = std::max<std::size_t>(1, all * kv_heads / (4 * threads));
            coarse_ = all / 8 * 5;
        }
        cost_ = 0;
        for_roots([&](std::size_t first, std::size_t last) {
            cut(first, last, {0, splits(first, last)});
            return std::size_t{0};
        });
        // Longest first, so that the threads finish together.
        ranges::sort(work_items_, [](const work_item& a, const work_item& b) {
            return a.cost != b.cost ? a.cost > b.cost : a.first_range < b.first_range;
        });
    }

    [[nodiscard]] std::span<const query_tile> query_tiles() const noexcept { return query_tiles_; }
    [[nodiscard]] std::span<const page_range> page_ranges() const noexcept { return page_ranges_; }
    [[nodiscard]] std::span<const work_item> work_items() const noexcept { return work_items_; }

    /// Softmax partials of one KV head that the work items write for a later merge: for each query of a group, one for
    /// each split of the group's positions.
    [[nodiscard]] std::size_t partials() const noexcept { return partials_; }

    /// Maximum number of queries of a work item.
    [[nodiscard]] static std::size_t capacity(std::size_t group) noexcept { return std::max(group, most_queries); }

    /// Splits that positions [0, end) touch.
    [[nodiscard]] static std::size_t splits(std::size_t end) noexcept {
        return (end + query_block::split - 1) / query_block::split;
    }

private:
    struct split_range {
        std::size_t first, last;
    };

    // Reading a key and a value costs as much as computing this many queries with them.
    static constexpr std::size_t cost_of_reading = 4;

    void make_query_tiles(std::size_t kv_heads, std::size_t threads) {
        order_.resize(parts_.size());
        for (std::size_t p = 0; p < parts_.size(); ++p)
            order_[p] = static_cast<std::uint32_t>(p);
        ranges::sort(order_, [&](std::uint32_t a, std::uint32_t b) {
            const auto left = parts_[a].pages.table, right = parts_[b].pages.table;
            const std::size_t same = common(left, right);
            if (same == std::min(left.size(), right.size()))
                return left.size() != right.size() ? left.size() < right.size() : a < b;
            return before(left[same], right[same]);
        });
        query_tiles_.clear();
        std::size_t queries = 0;
        for (std::size_t i = 0; i < order_.size(); ++i) {
            const attention_part& part = parts_[order_[i]];
            std::size_t same = i == 0 ? 0 : shared(parts_[order_[i - 1]], part);
            const std::size_t at_once = rows_together(part.queries.rows, kv_heads, threads);
            for (std::size_t row = 0; row < part.queries.rows; row += at_once) {
                const std::size_t rows = std::min(at_once, part.queries.rows - row);
                query_tiles_.push_back({.part = order_[i],
                                        .first = row,
                                        .rows = rows,
                                        .end = part.queries.position_of(row + rows - 1) + 1,
                                        .queries = queries,
                                        .same_entries = same});
                queries += rows * group_;
                same = part.pages.table.size();
            }
        }
    }

    // As many rows as fill a work item; fewer where threads would be idle, but enough to fill the kernels.
    [[nodiscard]] std::size_t rows_together(std::size_t rows, std::size_t kv_heads, std::size_t threads) const {
        const std::size_t most = std::max<std::size_t>(1, most_queries / group_);
        if (threads == 1)
            return most;
        const std::size_t least = std::max<std::size_t>(1, 24 / group_), shares = 4 * threads;
        const std::size_t some = std::clamp((rows * kv_heads + shares - 1) / shares, least, most);
        const std::size_t tiles = (rows + some - 1) / some;
        return (rows + tiles - 1) / tiles;
    }

    [[nodiscard]] static std::size_t common(std::span<const page_entry> a, std::span<const page_entry> b) {
        return static_cast<std::size_t>(ranges::mismatch(a, b).in1 - a.begin());
    }
    // Leading table entries that two parts read together. A spliced table is read a block at a time, so the common
    // prefix ends at a block boundary.
    [[nodiscard]] static std::size_t shared(const attention_part& a, const attention_part& b) {
        const std::size_t same = common(a.pages.table, b.pages.table);
        if (!a.pages.spliced && !b.pages.spliced)
            return same;
        std::size_t whole = 0, position = 0;
        for (std::size_t e = 0; e < same; ++e)
            if ((position += a.pages.table[e].count) % spliced_block == 0)
                whole = e + 1;
        return whole;
    }
    [[nodiscard]] static bool before(const page_entry& a, const page_entry& b) {
        return std::tuple(index_of(a.page), a.base, a.first, a.count) <
               std::tuple(index_of(b.page), b.base, b.first, b.count);
    }

    [[nodiscard]] std::size_t splits(std::size_t first, std::size_t last) const {
        std::size_t end = 0;
        for (std::size_t r = first; r < last; ++r)
            end = std::max(end, query_tiles_[r].end);
        return splits(end);
    }

    // Calls body(first, last) for the query tiles of each tree, and returns the sum of the results.
    template <class Body>
    std::size_t for_roots(Body body) {
        std::size_t all = 0;
        for (std::size_t first = 0, last; first < query_tiles_.size(); first = last) {
            for (last = first + 1; last < query_tiles_.size() && query_tiles_[last].same_entries > 0;)
                ++last;
            all += body(first, last);
        }
        return all;
    }

    // Appends the page ranges of a work item, in ascending position for each query tile. Returns their cost.
    std::size_t place(std::size_t first, std::size_t last, split_range of, std::size_t entry = 0,
                      std::size_t position = 0) {
        std::size_t shared = parts_[query_tiles_[first].part].pages.table.size(), end = query_tiles_[first].end;
        std::size_t read = first_read(first);
        for (std::size_t r = first + 1; r < last; ++r) {
            shared = std::min(shared, query_tiles_[r].same_entries);
            end = std::max(end, query_tiles_[r].end);
            read = std::min(read, first_read(r));
        }
        const auto table = parts_[query_tiles_[first].part].pages.table;
        page_range made{query_tiles_[first].part, entry, entry, position, first, last};
        const std::size_t from = std::max(read / spliced_block * spliced_block, of.first * query_block::split);
        const std::size_t to = std::min(end, of.last * query_block::split);
        if (to <= from)
            return 0;
        std::size_t at = position;
        for (; entry < shared && at < to; at += table[entry++].count)
            if (at + table[entry].count <= from) {
                made.first = entry + 1;
                made.position = at + table[entry].count;
            }
        made.last = entry;
        std::size_t cost = 0;
        if (made.first < made.last) {
            page_ranges_.push_back(made);
            cost = cost_of(made, std::max(from, made.position), std::min(at, to));
        }
        if (at >= to)
            return cost;
        for (std::size_t next = first, fork; next < last; next = fork) {
            for (fork = next + 1; fork < last && query_tiles_[fork].same_entries > shared;)
                ++fork;
            if (last - first > 1)
                cost += place(next, fork, of, entry, at);
        }
        return cost;
    }

    // The first position that any row of a query tile reads.
    [[nodiscard]] std::size_t first_read(std::size_t r) const {
        return shape_.first_read(parts_[query_tiles_[r].part].queries.position_of(query_tiles_[r].first));
    }

    [[nodiscard]] std::size_t cost_of(const page_range& range, std::size_t from, std::size_t to) const {
        std::size_t cost = cost_of_reading * (to - from);
        for (std::size_t r = range.first_query_tile; r < range.last_query_tile; ++r)
            cost += query_tiles_[r].rows * group_ * (std::clamp(query_tiles_[r].end, from, to) - from);
        return cost;
    }

    // Cost on one head up to which a work item is not cut. The last items get a quarter of it, so that threads of
    // unequal speed finish together.
    [[nodiscard]] std::size_t target() const noexcept { return cost_ < coarse_ ? target_ : target_ / 4; }

    // Makes work items of query tiles over splits: one item, or several if it is too large.
    void cut(std::size_t first, std::size_t last, split_range of) {
        const std::size_t mark = page_ranges_.size();
        const std::size_t cost = place(first, last, of);
        const std::size_t queries =
            query_tiles_[last - 1].queries + query_tiles_[last - 1].rows * group_ - query_tiles_[first].queries;
        const bool crowded = last - first > 1 && queries > most_queries;
        if (!crowded && cost > target() && of.last - of.first > 1) {
            page_ranges_.resize(mark);
            const std::size_t middle = (of.first + of.last) / 2;
            keep_partials(first, last);
            cut(first, last, {of.first, middle});
            cut(first, last, {middle, of.last});
            return;
        }
        if (crowded || (last - first > 1 && cost > 2 * target())) {
            page_ranges_.resize(mark);
            const std::size_t middle = fork(first, last);
            const std::size_t apart = place(first, middle, of) + place(middle, last, of);
            page_ranges_.resize(mark);
            if (crowded || apart <= cost + cost / 8) {
                cut(first, middle, of);
                cut(middle, last, of);
                return;
            }
            place(first, last, of);
        }
        cost_ += cost;
        work_items_.push_back({mark, page_ranges_.size(), first, last, of.first, of.last, cost});
    }

    // The query tile where the common prefix is shortest; the most central one of several.
    [[nodiscard]] std::size_t fork(std::size_t first, std::size_t last) const {
        const auto off = [&](std::size_t r) {
            return r > first + last - r ? 2 * r - first - last : first + last - 2 * r;
        };
        std::size_t best = first + 1;
        for (std::size_t r = first + 2; r < last; ++r)
            if (query_tiles_[r].same_entries < query_tiles_[best].same_entries ||
                (query_tiles_[r].same_entries == query_tiles_[best].same_entries && off(r) < off(best)))
                best = r;
        return best;
    }

    void keep_partials(std::size_t first, std::size_t last) {
        for (std::size_t r = first; r < last; ++r)
            if (query_tiles_[r].partials == query_tile::none) {
                query_tiles_[r].partials = partials_;
                partials_ += query_tiles_[r].rows * group_ * splits(query_tiles_[r].end);
            }
    }

    std::span<const attention_part> parts_;
    attention_shape shape_;
    std::size_t group_ = 1;
    std::size_t target_ = 0; // target cost of a work item on one head, for the first items
    std::size_t coarse_ = 0; // total cost of the items that use target_; later ones use a quarter
    std::size_t cost_ = 0;   // total cost of the items made
    std::size_t partials_ = 0;
    std::vector<std::uint32_t> order_; // indices of parts, sorted by page table
    std::vector<query_tile> query_tiles_;
    std::vector<page_range> page_ranges_;
    std::vector<work_item> work_items_;
};

}} // namespace kvcache
