// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/aligned.hpp>
#include <kvcache/storage/concept.hpp>

#include <cstring>
#include <memory_resource>
#include <new>
#include <utility>
#include <vector>

namespace kvcache {

/// Takes each page from a memory resource when it is first used, on a cache line and zeroed, and keeps it until the
/// cache closes. A budget that is never filled is never allocated.
struct heap {
    using role = storage_role;
    std::pmr::memory_resource* resource = nullptr; ///< Where pages come from; null means new and delete.
    class state;
    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const;
};

class heap::state {
public:
    state(std::pmr::memory_resource* resource, std::size_t pages, std::size_t page_bytes)
        : resource_(resource), page_bytes_(page_bytes), memory_(pages, nullptr) {}

    state(state&& other) noexcept
        : resource_(other.resource_), page_bytes_(other.page_bytes_), memory_(std::exchange(other.memory_, {})) {}
    state& operator=(state&& other) noexcept {
        std::swap(resource_, other.resource_);
        std::swap(page_bytes_, other.page_bytes_);
        std::swap(memory_, other.memory_);
        return *this;
    }

    ~state() {
        for (void* page : memory_)
            if (page != nullptr)
                resource_->deallocate(page, page_bytes_, line_bytes);
    }

    /// False if the resource has no memory left.
    [[nodiscard]] bool acquire(page_id page) {
        void*& memory = memory_[index_of(page)];
        if (memory != nullptr)
            return true;
        try {
            memory = resource_->allocate(page_bytes_, line_bytes);
        } catch (const std::bad_alloc&) {
            return false;
        }
        std::memset(memory, 0, page_bytes_);
        return true;
    }

    void release(page_id) noexcept {}

    [[nodiscard]] std::span<std::byte> bytes(page_id page) const {
        return {static_cast<std::byte*>(memory_[index_of(page)]), page_bytes_};
    }

private:
    std::pmr::memory_resource* resource_;
    std::size_t page_bytes_;
    std::vector<void*> memory_;
};

inline heap::state heap::open(std::size_t pages, std::size_t page_bytes) const {
    return {resource != nullptr ? resource : std::pmr::new_delete_resource(), pages, page_bytes};
}

static_assert(storage_policy<heap>);

} // namespace kvcache
