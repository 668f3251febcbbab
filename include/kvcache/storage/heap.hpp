// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/aligned.hpp>
#include <kvcache/core/exceptions.hpp>
#include <kvcache/core/zeroed_memory.hpp>
#include <kvcache/storage/concept.hpp>

#include <algorithm>
#include <cstring>
#include <memory_resource>
#include <new>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// Takes pages from a memory resource when they are first used, on a cache line and zeroed, and keeps them until the
/// cache closes. A large budget is taken in slabs of neighbouring pages, on huge pages where the system has them, none
/// of more than an eighth of it: a budget that is never filled is never allocated. Where no slab is to be had, single
/// pages are.
struct heap {
    using role = storage_role;
    std::pmr::memory_resource* resource = nullptr; ///< Where pages come from; null means the system: zeroed_memory.
    bool zeroed = false; ///< Whether all that the resource gives is zero already, so that no page is touched here.
    class state;
    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const;
};

class heap::state {
public:
    state(std::pmr::memory_resource* resource, bool zeroed, std::size_t pages, std::size_t page_bytes)
        : resource_(resource),
          zeroed_(zeroed),
          page_bytes_(page_bytes),
          stride_((page_bytes + line_bytes - 1) / line_bytes * line_bytes),
          slab_pages_(pages_a_slab(pages, stride_)),
          pages_(pages, nullptr),
          slabs_(slab_pages_ == 0 ? 0 : (pages + slab_pages_ - 1) / slab_pages_) {}

    state(state&& other) noexcept
        : resource_(other.resource_),
          zeroed_(other.zeroed_),
          page_bytes_(other.page_bytes_),
          stride_(other.stride_),
          slab_pages_(other.slab_pages_),
          pages_(std::exchange(other.pages_, {})),
          slabs_(std::exchange(other.slabs_, {})) {}
    state& operator=(state&& other) noexcept {
        std::swap(resource_, other.resource_);
        std::swap(zeroed_, other.zeroed_);
        std::swap(page_bytes_, other.page_bytes_);
        std::swap(stride_, other.stride_);
        std::swap(slab_pages_, other.slab_pages_);
        std::swap(pages_, other.pages_);
        std::swap(slabs_, other.slabs_);
        return *this;
    }

    ~state() {
        for (std::size_t page = 0; page < pages_.size(); ++page)
            if (pages_[page] != nullptr && slab_of(page) == nullptr)
                resource_->deallocate(pages_[page], page_bytes_, line_bytes);
        for (std::size_t i = 0; i < slabs_.size(); ++i)
            if (slabs_[i].memory != nullptr)
                resource_->deallocate(slabs_[i].memory, slab_bytes(i), huge_page_bytes);
    }

    /// False if the resource has no memory left.
    [[nodiscard]] bool acquire(page_id page) {
        void*& memory = pages_[index_of(page)];
        if (memory != nullptr)
            return true;
        if (!detail::completes<std::bad_alloc>([&] { memory = place(index_of(page)); }))
            return false;
        if (!zeroed_)
            std::memset(memory, 0, page_bytes_);
        return true;
    }

    void release(page_id) noexcept {}

    [[nodiscard]] std::span<std::byte> bytes(page_id page) const {
        return {static_cast<std::byte*>(pages_[index_of(page)]), page_bytes_};
    }

private:
    struct slab {
        std::byte* memory = nullptr;
        bool refused = false; // once: its pages are then taken one by one
    };

    // Sixteen huge pages: what lies on small ones, at the end of a slab, is then a sixteenth at most. None for a budget
    // so small that its slabs would not fill two huge pages each.
    [[nodiscard]] static std::size_t pages_a_slab(std::size_t pages, std::size_t stride) noexcept {
        const std::size_t most = 16 * huge_page_bytes / std::max<std::size_t>(stride, 1);
        const std::size_t fit = std::min(std::max<std::size_t>(most, 1), pages / 8);
        return alignment_for(fit * stride) == huge_page_bytes ? fit : 0;
    }

    [[nodiscard]] std::size_t slab_bytes(std::size_t index) const noexcept {
        return std::min(slab_pages_, pages_.size() - index * slab_pages_) * stride_;
    }

    [[nodiscard]] std::byte* slab_of(std::size_t page) const noexcept {
        return slabs_.empty() ? nullptr : slabs_[page / slab_pages_].memory;
    }

    // Throws: std::bad_alloc, if neither a slab nor a page is to be had.
    [[nodiscard]] void* place(std::size_t page) {
        if (!slabs_.empty()) {
            slab& own = slabs_[page / slab_pages_];
            if (own.memory == nullptr && !own.refused)
                take(own, slab_bytes(page / slab_pages_));
            if (own.memory != nullptr)
                return own.memory + page % slab_pages_ * stride_;
        }
        return resource_->allocate(page_bytes_, line_bytes);
    }

    void take(slab& own, std::size_t bytes) {
        own.refused = !detail::completes<std::bad_alloc>([&] {
            own.memory = static_cast<std::byte*>(resource_->allocate(bytes, huge_page_bytes));
            want_huge_pages(own.memory, bytes);
        });
    }

    std::pmr::memory_resource* resource_;
    bool zeroed_; // what it gives
    std::size_t page_bytes_;
    std::size_t stride_;     // from one page of a slab to the next, in bytes
    std::size_t slab_pages_; // 0: pages are taken one by one
    std::vector<void*> pages_;
    std::vector<slab> slabs_;
};

inline heap::state heap::open(std::size_t pages, std::size_t page_bytes) const {
    if (resource == nullptr)
        return {zeroed_memory::shared(), true, pages, page_bytes};
    return {resource, zeroed, pages, page_bytes};
}

static_assert(storage_policy<heap>);

} // namespace kvcache
