// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/cuda/device.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory_resource>
#include <new>

namespace kvcache { inline namespace KVCACHE_ABI { namespace cuda {

/// Memory resource of pinned host memory: `heap{.resource = &pinned}` keeps pages that a device copies directly. Throws
/// bad_alloc if no memory can be pinned, which storages report as a failed page.
template <device Device>
class pinned_resource : public std::pmr::memory_resource {
public:
    /// Requires: the device outlives it.
    explicit pinned_resource(Device& device) : device_(&device) {}

private:
    void* do_allocate(std::size_t bytes, std::size_t alignment) override {
        auto memory = device_->allocate_pinned(bytes + alignment);
        if (!memory)
            throw std::bad_alloc();
        const auto at = (reinterpret_cast<std::uintptr_t>(*memory) + alignment - 1) / alignment * alignment;
        auto* const begin = *memory + (at - reinterpret_cast<std::uintptr_t>(*memory));
        try {
            whole_.emplace(begin, *memory);
        } catch (...) {
            device_->deallocate_pinned(*memory);
            throw;
        }
        return begin;
    }
    void do_deallocate(void* at, std::size_t, std::size_t) override {
        const auto found = whole_.find(at);
        expects(found != whole_.end(), "memory goes back to where it came from");
        device_->deallocate_pinned(found->second);
        whole_.erase(found);
    }
    [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

    Device* device_;
    std::map<void*, std::byte*> whole_; // allocations, by the aligned address returned
};

}}} // namespace kvcache::cuda
