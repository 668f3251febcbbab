// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/cuda/host_device.hpp>

#include <cstddef>
#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI { namespace cuda {

/// Addresses of the pages of a device storage, passed to kernels by value: at most 64 slabs of contiguous pages.
struct device_page_pool {
    static constexpr std::size_t most_slabs = 64;

    std::uint64_t page_stride = 0; ///< Bytes from one page of a slab to the next.
    std::uint32_t slab_pages = 1;
    std::byte* slabs[most_slabs] = {};

    [[nodiscard]] KVCACHE_HOST_DEVICE std::byte* page(std::uint32_t page) const noexcept {
        return slabs[page / slab_pages] + page % slab_pages * page_stride;
    }
};

}}} // namespace kvcache::cuda
