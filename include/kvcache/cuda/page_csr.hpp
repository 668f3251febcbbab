// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/cuda/device_memory.hpp>
#include <kvcache/cuda/page_layout.hpp>

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace cuda {

/// Page tables of a batch in the CSR form of FlashInfer and vLLM: sequence i has the pages indices[indptr[i]] to
/// indices[indptr[i + 1] - 1], all full except the last, which has last_page_len[i] rows. (Ye et al. 2025, FlashInfer)
struct page_csr {
    std::vector<std::int32_t> indptr = {0};       ///< (sequences + 1)
    std::vector<std::int32_t> indices = {};       ///< (pages)
    std::vector<std::int32_t> last_page_len = {}; ///< (sequences); 0 for an empty sequence
};

/// Converts page tables to CSR. Errors: unsupported, for tables that CSR cannot represent: keys rotated from a base
/// other than zero, rows that begin inside a page, a partial page before the last; out_of_range, past 2^31.
[[nodiscard]] inline result<page_csr> export_csr(std::span<const std::span<const page_entry>> tables,
                                                 std::uint32_t page_tokens) {
    page_csr csr;
    const auto refuse = [](std::size_t sequence, std::size_t entry, const char* why) {
        return error{error_code::unsupported, "page table",
                     "entry " + std::to_string(entry) + " of sequence " + std::to_string(sequence) + " " + why};
    };
    for (std::size_t i = 0; i < tables.size(); ++i) {
        for (std::size_t e = 0; e < tables[i].size(); ++e) {
            const page_entry& entry = tables[i][e];
            if (entry.base != 0)
                return refuse(i, e, "has keys rotated from another position than zero");
            if (entry.first != 0)
                return refuse(i, e, "begins inside its page");
            if (entry.count == 0 || entry.count > page_tokens ||
                (entry.count < page_tokens && e + 1 < tables[i].size()))
                return refuse(i, e, "is not a full page, and not the last");
            if (index_of(entry.page) > static_cast<std::uint32_t>(std::numeric_limits<std::int32_t>::max()))
                return error{error_code::out_of_range, "page", "a page's number is past 2^31"};
            csr.indices.push_back(static_cast<std::int32_t>(index_of(entry.page)));
        }
        if (csr.indices.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
            return error{error_code::out_of_range, "indptr", "the batch has more than 2^31 pages"};
        csr.indptr.push_back(static_cast<std::int32_t>(csr.indices.size()));
        csr.last_page_len.push_back(tables[i].empty() ? 0 : static_cast<std::int32_t>(tables[i].back().count));
    }
    return csr;
}

/// One layer of all pages as a strided tensor for other kernels: element (page, token, head, dim) of the keys is at
/// keys + page * page_stride + token * token_stride + head * head_stride + dim. Strides count elements.
struct paged_tensor {
    const std::byte* keys = nullptr;
    const std::byte* values = nullptr;
    std::int64_t page_stride = 0;
    std::int64_t token_stride = 0;
    std::int64_t head_stride = 0;
};

/// Describes a layer as a tensor. Errors: unsupported, if pages are in several slabs, a page is not a multiple of
/// elements, or the format has scales.
[[nodiscard]] inline result<paged_tensor> export_tensor(const page_layout& layout, const device_page_pool& pool,
                                                        std::uint32_t layer) {
    const std::uint64_t element = layout.row_bytes() / layout.shape.head_dim;
    if (layout.row_scales() != 0)
        return error{error_code::unsupported, "format", "numbers with scales are no tensor of one type"};
    if (pool.slabs[0] == nullptr || pool.slabs[1] != nullptr)
        return error{error_code::unsupported, "slabs",
                     "the pages do not lie in one slab; open the storage with slab_bytes 0"};
    if (pool.page_stride % element != 0)
        return error{error_code::unsupported, "page_stride", "a page is not a multiple of its elements"};
    const auto stride = [&](std::uint64_t rows) { return static_cast<std::int64_t>(rows * layout.shape.head_dim); };
    return paged_tensor{pool.slabs[0] + layout.side(layer, row_side::keys),
                        pool.slabs[0] + layout.side(layer, row_side::values),
                        static_cast<std::int64_t>(pool.page_stride / element), stride(layout.token_stride()),
                        stride(layout.head_stride())};
}

/// CSR tables on the device.
template <device Device>
class device_csr {
public:
    explicit device_csr(Device& device) : indptr(device), indices(device), last_page_len(device) {}

    device_array<std::int32_t, Device> indptr;
    device_array<std::int32_t, Device> indices;
    device_array<std::int32_t, Device> last_page_len;

    /// Errors: out_of_memory, io.
    [[nodiscard]] result<void> assign(stream_id stream, const page_csr& csr) {
        if (auto sent = indptr.assign(stream, csr.indptr); !sent)
            return sent;
        if (auto sent = indices.assign(stream, csr.indices); !sent)
            return sent;
        return last_page_len.assign(stream, csr.last_page_len);
    }
};

}}} // namespace kvcache::cuda
