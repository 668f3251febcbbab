// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/memory.hpp>
#include <kvcache/core/platform/machine.hpp>
#include <kvcache/core/platform/memory.hpp>
#include <kvcache/storage/concept.hpp>
#include <kvcache/storage/heap.hpp>

#include <algorithm>
#include <concepts>
#include <limits>

namespace kvcache { inline namespace KVCACHE_ABI { namespace storage {

#if KVCACHE_POSIX

/// Allocates the whole capacity as one block on huge pages. Huge pages reserved by the administrator (MAP_HUGETLB) are
/// taken at construction, all or none. If there are too few, ordinary memory is mapped and committed as it fills, and
/// the system is advised to use huge pages (madvise). The state reports which it got.
struct huge_pages {
    using role = storage_role;
    bool set_aside = true; ///< Whether to try the reserved huge pages; if not, memory is committed only as it fills.

    /// The kind of memory that backs the pages.
    enum class backing {
        set_aside, ///< Huge pages of the administrator's pool, guaranteed.
        advised,   ///< Ordinary memory; the system accepted the advice to use huge pages.
        ordinary,  ///< Ordinary memory: the system has no huge pages, or the capacity is smaller than one.
        none,      ///< No memory: every page is refused.
    };

    class state {
    public:
        state(bool from_pool, std::size_t pages, std::size_t page_bytes)
            : page_bytes_(page_bytes), stride_((page_bytes + line_bytes - 1) / line_bytes * line_bytes) {
            if (pages == 0 || stride_ == 0 || pages > (std::numeric_limits<std::size_t>::max() >> 1) / stride_)
                return;
            take(from_pool, (pages * stride_ + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes);
        }

        /// Returns false if there is no memory at all.
        [[nodiscard]] bool acquire(page_id) const noexcept { return backing_ != backing::none; }
        void release(page_id) noexcept {}
        [[nodiscard]] std::span<std::byte> bytes(page_id page) const {
            return memory_.bytes().subspan(begin_ + index_of(page) * stride_, page_bytes_);
        }

        /// The kind of memory that backs the pages.
        [[nodiscard]] huge_pages::backing backing() const noexcept { return backing_; }

    private:
        using backing_type = huge_pages::backing;

        void take(bool from_pool, std::size_t size) {
            if (from_pool)
                memory_ = platform::address_range::map(size, platform::backing::huge);
            if (!memory_.empty()) {
                backing_ = backing_type::set_aside;
                return;
            }
            // One extra huge page, so that the first page can begin on a boundary.
            memory_ = platform::address_range::map(size + huge_page_bytes, platform::backing::lazy);
            if (memory_.empty())
                return;
            const auto at = reinterpret_cast<std::uintptr_t>(memory_.bytes().data());
            begin_ = (huge_page_bytes - at % huge_page_bytes) % huge_page_bytes;
            backing_ =
                want_huge_pages(memory_.bytes().data() + begin_, size) ? backing_type::advised : backing_type::ordinary;
        }

        std::size_t page_bytes_;
        std::size_t stride_; // distance between pages, in bytes
        platform::address_range memory_;
        std::size_t begin_ = 0; // offset of the first page
        backing_type backing_ = backing_type::none;
    };

    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const { return {set_aside, pages, page_bytes}; }
};

/// The name of a backing.
[[nodiscard]] constexpr const char* to_string(huge_pages::backing what) noexcept {
    switch (what) {
    case huge_pages::backing::set_aside:
        return "huge pages set aside";
    case huge_pages::backing::advised:
        return "huge pages by advice";
    case huge_pages::backing::ordinary:
        return "ordinary pages";
    case huge_pages::backing::none:
        break;
    }
    return "no memory";
}

#else

/// Not on this system: see the message.
struct huge_pages {
    using role = storage_role;
    bool set_aside = true;

    template <class Number>
    [[nodiscard]] heap::state open(Number pages, std::size_t page_bytes) const {
        static_assert(!std::integral<Number>,
                      "kvcache: storage::huge_pages needs the memory mappings of POSIX, which this system lacks: use "
                      "storage::heap");
        return heap{}.open(pages, page_bytes);
    }
};

#endif

static_assert(storage_policy<huge_pages>);

}}} // namespace kvcache::storage
