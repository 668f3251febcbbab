// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/core/platform/memory.hpp>
#include <kvcache/storage/concept.hpp>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace storage {

/// Allocates pages from a memory resource on first use, cache-line aligned and zeroed, and keeps them until the cache
/// closes. A large capacity is allocated in slabs of adjacent pages, on huge pages where the system has them. A slab is
/// at most an eighth of the capacity, so memory that is never needed is never allocated. If a slab cannot be allocated,
/// its pages are allocated one by one. A cache of layer groups gives the memory of each freed page back.
struct heap {
    using role = storage_role;
    pmr::memory_resource* resource = nullptr; ///< Source of the memory; null means zeroed_memory.
    bool zeroed = false; ///< Whether the resource returns zeroed memory, so that pages are not cleared here.
    /// Whether the memory of a freed page is kept for the next one. If not, pages are allocated one by one, and freed.
    bool keep = true;

    class state {
    public:
        /// `how` has a resource.
        state(const heap& how, std::size_t pages, std::size_t page_bytes)
            : resource_(how.resource),
              zeroed_(how.zeroed),
              keep_(how.keep),
              page_bytes_(page_bytes),
              stride_((page_bytes + line_bytes - 1) / line_bytes * line_bytes),
              slab_pages_(keep_ ? pages_a_slab(pages, stride_) : 0),
              pages_(pages, nullptr),
              slabs_(slab_pages_ == 0 ? 0 : (pages + slab_pages_ - 1) / slab_pages_) {}

        state(state&& other) noexcept
            : resource_(other.resource_),
              zeroed_(other.zeroed_),
              keep_(other.keep_),
              page_bytes_(other.page_bytes_),
              stride_(other.stride_),
              slab_pages_(other.slab_pages_),
              pages_(std::exchange(other.pages_, {})),
              slabs_(std::exchange(other.slabs_, {})) {}
        state& operator=(state&& other) noexcept {
            std::swap(resource_, other.resource_);
            std::swap(zeroed_, other.zeroed_);
            std::swap(keep_, other.keep_);
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

        /// Returns false if the resource is out of memory.
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

        void release(page_id page) noexcept {
            if (!keep_)
                resource_->deallocate(std::exchange(pages_[index_of(page)], nullptr), page_bytes_, line_bytes);
        }

        [[nodiscard]] std::span<std::byte> bytes(page_id page) const {
            return {static_cast<std::byte*>(pages_[index_of(page)]), page_bytes_};
        }

    private:
        struct slab {
            std::byte* memory = nullptr;
            bool refused = false; // sticky: its pages are then allocated one by one
        };

        // A slab has 16 huge pages, so the part at its end that lies on small pages is at most 1/16. Zero for a
        // capacity so small that a slab would not fill two huge pages.
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

        // Throws: std::bad_alloc, if neither a slab nor a page can be allocated.
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

        pmr::memory_resource* resource_;
        bool zeroed_; // whether the resource returns zeroed memory
        bool keep_;   // whether freed pages keep their memory
        std::size_t page_bytes_;
        std::size_t stride_;     // distance between pages of a slab, in bytes
        std::size_t slab_pages_; // 0: pages are allocated one by one
        std::vector<void*> pages_;
        std::vector<slab> slabs_;
    };

    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const {
        heap how = *this;
        if (resource == nullptr) {
            how.resource = zeroed_memory::shared();
            how.zeroed = true;
        }
        return {how, pages, page_bytes};
    }
};

static_assert(storage_policy<heap>);

}}} // namespace kvcache::storage
