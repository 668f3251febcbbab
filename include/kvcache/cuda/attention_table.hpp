// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/cuda/device_math.hpp>
#include <kvcache/cuda/page_layout.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace cuda {

/// Rows [begin, begin + count) of a sequence, which are the rows [first, first + count) of a page.
struct alignas(16) attention_entry {
    std::uint32_t page = 0;
    std::uint32_t begin = 0;
    std::uint32_t run = 0; ///< Index of the rotated query that reads them.
    std::uint16_t first = 0;
    std::uint16_t count = 0;
};

/// Adjacent entries of one sequence whose keys have one RoPE base, so that one rotated query reads them.
struct rotation_run {
    std::uint32_t sequence = 0;
    std::int32_t turn = 0; ///< The query's position minus the base.
};

/// Rows of a sequence that one block reads: from `first` on, split_rows of them or the rest.
struct attention_split {
    std::uint32_t sequence = 0;
    std::uint32_t first = 0;
};

/// Splits begin at multiples of this row, independent of the batch: part of the numeric contract of a device.
inline constexpr std::uint32_t split_rows = 512;

/// Page tables of a batch in the form that the attention kernels read. Each sequence has one query, which attends to
/// all of its rows.
struct attention_table {
    std::vector<attention_entry> entries = {};
    std::vector<std::uint32_t> entry_begin = {0}; ///< (sequences + 1), in entries
    std::vector<std::uint32_t> rows = {};         ///< (sequences)
    std::vector<rotation_run> runs = {};
    std::vector<attention_split> splits = {};
    std::vector<std::uint32_t> split_begin = {0}; ///< (sequences + 1), in splits

    /// Adds a sequence whose query has the position `position`. Errors: out_of_range, for values beyond 32 bits;
    /// nothing has changed then.
    [[nodiscard]] result<void> add(std::span<const page_entry> table, std::int64_t position) {
        constexpr std::uint64_t most = std::numeric_limits<std::int32_t>::max();
        std::uint64_t all = 0;
        for (const page_entry& entry : table) {
            const std::int64_t turn = position - entry.base;
            if (entry.first > 65535 || entry.count > 65535)
                return error{error_code::out_of_range, "page table", "a page has more than 65535 rows"};
            if (turn > static_cast<std::int64_t>(most) || turn < -static_cast<std::int64_t>(most))
                return error{error_code::out_of_range, "base",
                             "position " + std::to_string(position) + " is too far from base " +
                                 std::to_string(entry.base)};
            all += entry.count;
        }
        if (all > most || entries.size() + table.size() > most)
            return error{error_code::out_of_range, "page table", "a sequence has more than 2^31 rows"};

        const auto sequence = static_cast<std::uint32_t>(rows.size());
        std::uint32_t begin = 0;
        for (const page_entry& entry : table) {
            if (entry.count == 0)
                continue;
            const auto turn = static_cast<std::int32_t>(position - entry.base);
            if (begin == 0 || runs.back().turn != turn)
                runs.push_back({sequence, turn});
            entries.push_back({index_of(entry.page), begin, static_cast<std::uint32_t>(runs.size() - 1),
                               static_cast<std::uint16_t>(entry.first), static_cast<std::uint16_t>(entry.count)});
            begin += entry.count;
        }
        for (std::uint32_t first = 0; first < begin; first += split_rows)
            splits.push_back({sequence, first});
        rows.push_back(begin);
        entry_begin.push_back(static_cast<std::uint32_t>(entries.size()));
        split_begin.push_back(static_cast<std::uint32_t>(splits.size()));
        return {};
    }
};

/// Device memory that the attention kernels of one layer read and write.
struct attention_arguments {
    page_layout layout = {};
    device_page_pool pool = {};
    std::uint32_t layer = 0;
    std::uint32_t heads = 1; ///< Query heads, a multiple of layout.shape.kv_heads.
    std::uint32_t split_count = 0;
    const attention_entry* entries = nullptr;
    const std::uint32_t* entry_begin = nullptr; ///< (sequences + 1)
    const std::uint32_t* rows = nullptr;        ///< (sequences)
    const attention_split* splits = nullptr;    ///< (splits)
    const float* queries = nullptr;             ///< (runs, heads, head_dim), rotated, times scale / log(2)
    const std::int16_t* query_codes = nullptr;  ///< The same as int16, for int8 pages.
    const float* query_scales = nullptr;        ///< (runs, heads)
    float* sums = nullptr;                      ///< (splits, heads, head_dim): weighted sums of the values
    float* largest = nullptr;                   ///< (splits, heads): the largest score, in log2 units
    float* totals = nullptr;                    ///< (splits, heads): the sum of the weights
};

/// Location of a row of keys, and the rotated query that reads it. Its values are side_bytes() further on.
struct alignas(16) row_place {
    const std::byte* codes = nullptr;
    std::uint32_t row = 0; ///< Index in its side.
    std::uint32_t run = 0;

    /// Address of its scales.
    [[nodiscard]] KVCACHE_HOST_DEVICE const std::byte* scales(const page_layout& layout) const noexcept {
        return codes - layout.codes(row) + layout.scales(row);
    }
};

/// Location of a sequence's row. The guess assumes that all entries before it are full; otherwise a binary search.
[[nodiscard]] KVCACHE_HOST_DEVICE row_place place_of(const attention_arguments& on, std::uint32_t sequence,
                                                     std::uint32_t row, std::uint32_t head) noexcept {
    std::uint32_t low = on.entry_begin[sequence], high = on.entry_begin[sequence + 1] - 1;
    const std::uint32_t guess = low + row / on.layout.shape.tokens;
    attention_entry entry = on.entries[guess < high ? guess : high];
    if (row < entry.begin || row - entry.begin >= entry.count) {
        while (low < high) {
            const std::uint32_t middle = low + (high - low + 1) / 2;
            if (on.entries[middle].begin <= row)
                low = middle;
            else
                high = middle - 1;
        }
        entry = on.entries[low];
    }
    const std::uint64_t at = on.layout.row(row - entry.begin + entry.first, head);
    const std::byte* const keys = on.pool.page(entry.page) + on.layout.side(on.layer, row_side::keys);
    return {keys + on.layout.codes(at), static_cast<std::uint32_t>(at), entry.run};
}

}}} // namespace kvcache::cuda
