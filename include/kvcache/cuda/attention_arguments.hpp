// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cuda/attention_table.hpp>
#include <kvcache/cuda/device_page_pool.hpp>
#include <kvcache/cuda/host_device.hpp>
#include <kvcache/cuda/page_layout.hpp>

#include <cstddef>
#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI { namespace cuda {

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
