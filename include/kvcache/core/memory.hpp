// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/platform/memory.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The larger page size of most 64-bit systems (2 MiB): one TLB entry instead of 512.
inline constexpr std::size_t huge_page_bytes = std::size_t{1} << 21;

/// Advises the system to back the whole huge pages inside [at, at + bytes) with huge pages: at once for memory not
/// touched yet, gradually for the rest. Returns whether the system accepts the advice; where it does not, nothing
/// happens. bytes_on_huge_pages() reports the outcome.
inline bool want_huge_pages(void* at, std::size_t bytes) noexcept {
    const auto from = reinterpret_cast<std::uintptr_t>(at);
    const std::uintptr_t first = (from + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes;
    const std::uintptr_t last = (from + bytes) / huge_page_bytes * huge_page_bytes;
    return first < last && platform::advise_huge_pages(static_cast<std::byte*>(at) + (first - from), last - first);
}

/// Bytes of a cache line, and of an AVX-512 vector.
inline constexpr std::size_t line_bytes = 64;

/// The alignment of an allocation of `bytes`: a huge page if it spans at least two of them, a cache line otherwise.
[[nodiscard]] constexpr std::size_t alignment_for(std::size_t bytes) noexcept {
    return bytes >= 2 * huge_page_bytes ? huge_page_bytes : line_bytes;
}

/// An allocator that aligns to cache lines, and puts large allocations on huge pages where the system has them.
template <class T>
struct line_allocator {
    using value_type = T;

    line_allocator() = default;
    template <class U>
    line_allocator(const line_allocator<U>&) noexcept {}

    [[nodiscard]] T* allocate(std::size_t n) {
        const std::size_t bytes = n * sizeof(T), alignment = alignment_for(bytes);
        void* const at = ::operator new (bytes, std::align_val_t{alignment});
        if (alignment == huge_page_bytes)
            want_huge_pages(at, bytes);
        return static_cast<T*>(at);
    }
    void deallocate(T* at, std::size_t n) noexcept {
        ::operator delete (at, std::align_val_t{alignment_for(n * sizeof(T))});
    }

    friend bool operator==(const line_allocator&, const line_allocator&) { return true; }
};

/// A vector whose data begins on a cache line.
template <class T>
using aligned_vector = std::vector<T, line_allocator<T>>;

/// A memory resource whose allocations are zeroed. An allocation aligned to a huge page comes straight from the system
/// (platform::map_zeroed). Other allocations are cleared here. Thread-safe.
class zeroed_memory : public pmr::memory_resource {
public:
    /// The shared instance.
    [[nodiscard]] static zeroed_memory* shared() noexcept {
        static zeroed_memory all;
        return &all;
    }

private:
    void* do_allocate(std::size_t bytes, std::size_t alignment) override {
        if (alignment != huge_page_bytes)
            return std::memset(pmr::new_delete_resource()->allocate(bytes, alignment), 0, bytes);
        if (bytes > (std::numeric_limits<std::size_t>::max() >> 1))
            detail::throw_bad_alloc();
        std::byte* const at = platform::map_zeroed(mapped(bytes), huge_page_bytes);
        if (at == nullptr)
            detail::throw_bad_alloc();
        return at;
    }
    void do_deallocate(void* at, std::size_t bytes, std::size_t alignment) override {
        if (alignment != huge_page_bytes)
            pmr::new_delete_resource()->deallocate(at, bytes, alignment);
        else
            platform::unmap_zeroed(static_cast<std::byte*>(at), mapped(bytes), huge_page_bytes);
    }
    [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

    [[nodiscard]] static std::size_t mapped(std::size_t bytes) noexcept {
        return bytes / huge_page_bytes * huge_page_bytes + (bytes % huge_page_bytes > 0 ? huge_page_bytes : 0);
    }
};

}} // namespace kvcache
