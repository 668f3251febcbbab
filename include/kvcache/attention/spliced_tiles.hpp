// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/attention_plan.hpp>
#include <kvcache/attention/query_block.hpp>
#include <kvcache/attention/tile_kernels.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/core/shape.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Lanes of a tile that a spliced table uses: `lanes` has a bit for each.
struct spliced_tile {
    page_id page = {};
    std::uint32_t tile = 0;
    std::uint32_t lanes = 0;
    std::int64_t base = 0;
    std::int64_t origin = 0; ///< Position of lane 0, whether it is used or not.
    std::size_t entry = 0;   ///< The first entry of the table with one of its lanes.

    [[nodiscard]] std::int64_t position() const noexcept { return origin + std::countr_zero(lanes); }

    /// Sets the lanes of a tile. If there are gaps, their mask is written to `mask`. (16)
    void put(attention_tile& to, float* mask) const noexcept {
        to.first = static_cast<std::size_t>(std::countr_zero(lanes));
        to.last = static_cast<std::size_t>(std::bit_width(lanes));
        to.position = static_cast<std::size_t>(position());
        to.mask = nullptr;
        if (static_cast<std::size_t>(std::popcount(lanes)) == to.last - to.first)
            return;
        for (std::size_t lane = 0; lane < tile_tokens; ++lane)
            mask[lane] = (lanes >> lane & 1u) != 0 ? 0.0f : -std::numeric_limits<float>::infinity();
        to.mask = mask;
    }
};

/// Tiles of a spliced table, a block of positions at a time. Within a block the tiles of one base are consecutive, and
/// each tile comes once, with a mask for its gaps. The order depends on the table alone.
class spliced_tiles {
public:
    /// Positions [first, last).
    struct positions {
        std::size_t first, last;
    };

    spliced_tiles() { tiles_.reserve(attention_plan::spliced_block); }

    /// Calls body(tile) for all tiles of a range with rows at the positions of `read` that begin in the work item's
    /// splits.
    template <class Body>
    void for_each(std::span<const page_entry> table, const page_range& range, const work_item& item, positions read,
                  const Body& body) {
        const std::size_t end = read.last;
        std::size_t start = range.position, block = 0;
        for (std::size_t e = range.first; e < range.last && start < end; start += table[e++].count) {
            const page_entry& entry = table[e];
            const std::size_t count = std::min<std::size_t>(entry.count, end - start), last = entry.first + count;
            for (std::size_t row = entry.first; row < last;) {
                const std::size_t tile = row / tile_tokens, behind = std::min(last, (tile + 1) * tile_tokens);
                const std::size_t position = start + row - entry.first;
                if (position / attention_plan::spliced_block != block) {
                    give(block, body);
                    block = position / attention_plan::spliced_block;
                }
                const std::size_t split = position / query_block::split;
                if (split >= item.first_split && split < item.last_split && position + (behind - row) > read.first)
                    add(table, e, tile, row % tile_tokens, behind - row, position);
                row = behind;
            }
        }
        give(block, body);
    }

private:
    void add(std::span<const page_entry> table, std::size_t e, std::size_t tile, std::size_t lane, std::size_t count,
             std::size_t position) {
        const page_entry& entry = table[e];
        const std::uint32_t lanes = ((1u << count) - 1u) << lane;
        const auto origin = static_cast<std::int64_t>(position) - static_cast<std::int64_t>(lane);
        for (spliced_tile& known : tiles_)
            if (known.page == entry.page && known.tile == tile && known.base == entry.base && known.origin == origin) {
                known.lanes |= lanes;
                return;
            }
        tiles_.push_back({entry.page, static_cast<std::uint32_t>(tile), lanes, entry.base, origin, e});
    }

    // Bases ascend in one block and descend in the next, so that queries are rotated half as often.
    template <class Body>
    void give(std::size_t block, const Body& body) {
        ranges::sort(tiles_, [&](const spliced_tile& a, const spliced_tile& b) {
            if (a.base != b.base)
                return block % 2 == 0 ? a.base < b.base : a.base > b.base;
            return a.position() < b.position();
        });
        for (const spliced_tile& one : tiles_)
            body(one);
        tiles_.clear();
    }

    std::vector<spliced_tile> tiles_; // tiles of the current block
};

}} // namespace kvcache
