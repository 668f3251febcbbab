// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/platform/machine.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <utility>
#include <version>

#if defined(__cpp_lib_memory_resource)
#include <memory_resource>
#endif
#if KVCACHE_POSIX
#include <sys/mman.h>
#include <unistd.h>
#endif

// Functions of kernel32 that neither C nor C++ has, declared by hand, because windows.h defines thousands of macros.
// The types are those of windows.h, so a file may include both.
#if KVCACHE_WINDOWS
struct _SECURITY_ATTRIBUTES;
struct _MEMORY_BASIC_INFORMATION;

extern "C" {
__declspec(dllimport) void* __stdcall VirtualAlloc(void*, std::size_t, unsigned long, unsigned long);
__declspec(dllimport) int __stdcall VirtualFree(void*, std::size_t, unsigned long);
__declspec(dllimport) std::size_t __stdcall VirtualQuery(const void*, struct _MEMORY_BASIC_INFORMATION*, std::size_t);
__declspec(dllimport) int __stdcall VirtualUnlock(void*, std::size_t);
__declspec(dllimport) int __stdcall GetPhysicallyInstalledSystemMemory(unsigned long long*);
__declspec(dllimport) void* __stdcall CreateFileMappingW(void*, struct _SECURITY_ATTRIBUTES*, unsigned long,
                                                         unsigned long, unsigned long, const wchar_t*);
__declspec(dllimport) void* __stdcall MapViewOfFile(void*, unsigned long, unsigned long, unsigned long, std::size_t);
__declspec(dllimport) int __stdcall UnmapViewOfFile(const void*);
__declspec(dllimport) int __stdcall CloseHandle(void*);
}
#endif

// std::pmr::memory_resource as kvcache::pmr::memory_resource. libc++ has it since version 16, and macOS since 14.

#if defined(__cpp_lib_memory_resource)

namespace kvcache { inline namespace KVCACHE_ABI {
namespace pmr = std::pmr;
}} // namespace kvcache

#else

namespace kvcache { inline namespace KVCACHE_ABI { namespace pmr {

/// As std::pmr::memory_resource.
class memory_resource {
public:
    virtual ~memory_resource() = default;

    [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) {
        return do_allocate(bytes, alignment);
    }
    void deallocate(void* at, std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) {
        do_deallocate(at, bytes, alignment);
    }
    [[nodiscard]] bool is_equal(const memory_resource& other) const noexcept { return do_is_equal(other); }

private:
    virtual void* do_allocate(std::size_t bytes, std::size_t alignment) = 0;
    virtual void do_deallocate(void* at, std::size_t bytes, std::size_t alignment) = 0;
    [[nodiscard]] virtual bool do_is_equal(const memory_resource& other) const noexcept = 0;
};

/// As std::pmr::new_delete_resource.
[[nodiscard]] inline memory_resource* new_delete_resource() noexcept {
    class new_delete : public memory_resource {
        void* do_allocate(std::size_t bytes, std::size_t alignment) override {
            return ::operator new (bytes, std::align_val_t{alignment});
        }
        void do_deallocate(void* at, std::size_t, std::size_t alignment) override {
            ::operator delete (at, std::align_val_t{alignment});
        }
        [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
    };
    static new_delete one;
    return &one;
}

}}} // namespace kvcache::pmr

#endif

namespace kvcache { inline namespace KVCACHE_ABI { namespace platform {

/// Bytes of a page of the system's memory, or a guess.
[[nodiscard]] inline std::size_t system_page_bytes() noexcept {
#if KVCACHE_POSIX
    return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
#else
    return 4096;
#endif
}

/// Bytes of the machine's memory; zero where the system does not tell.
[[nodiscard]] inline std::uint64_t machine_bytes() noexcept {
#if KVCACHE_POSIX
    const auto pages = ::sysconf(_SC_PHYS_PAGES);
    return pages < 0 ? 0 : static_cast<std::uint64_t>(pages) * system_page_bytes();
#elif KVCACHE_WINDOWS
    unsigned long long kilobytes = 0;
    return ::GetPhysicallyInstalledSystemMemory(&kilobytes) != 0 ? std::uint64_t{kilobytes} * 1024 : 0;
#else
    return 0;
#endif
}

/// Advises the system to back these bytes with huge pages. Returns whether it accepts the advice.
inline bool advise_huge_pages([[maybe_unused]] std::byte* at, [[maybe_unused]] std::size_t bytes) noexcept {
#if KVCACHE_POSIX && defined(MADV_HUGEPAGE)
    return ::madvise(at, bytes, MADV_HUGEPAGE) == 0;
#else
    return false;
#endif
}

/// Zeroed memory from the system, which clears a page on the first write to it where it can. Returns null if there is
/// none. Requires: `alignment` is a power of two and a multiple of the system's pages, and divides `bytes`; the sum of
/// both can be represented.
[[nodiscard]] inline std::byte* map_zeroed(std::size_t bytes, std::size_t alignment) noexcept {
    [[maybe_unused]] const auto past = [alignment](const void* at) { // the bytes from a boundary to `at`
        return reinterpret_cast<std::uintptr_t>(at) % alignment;
    };
#if KVCACHE_POSIX
    // More by the alignment, so that a boundary lies inside; the excess is unmapped.
    void* const from = ::mmap(nullptr, bytes + alignment, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (from == MAP_FAILED)
        return nullptr;
    auto* const first = static_cast<std::byte*>(from);
    const std::size_t before = past(from) == 0 ? 0 : alignment - past(from);
    if (before > 0)
        ::munmap(first, before);
    ::munmap(first + before + bytes, alignment - before);
    return first + before;
#elif KVCACHE_WINDOWS
    constexpr unsigned long reserve = 0x2000, commit = 0x1000, read_write = 4;
    // An excess cannot be given back here: its addresses stay reserved, without memory.
    auto* const from = static_cast<std::byte*>(::VirtualAlloc(nullptr, bytes + alignment, reserve, read_write));
    if (from == nullptr)
        return nullptr;
    std::byte* const first = from + (past(from) == 0 ? 0 : alignment - past(from));
    if (::VirtualAlloc(first, bytes, commit, read_write) != nullptr)
        return first;
    ::VirtualFree(from, 0, 0x8000);
    return nullptr;
#else
    void* const at = ::operator new (bytes, std::align_val_t{alignment}, std::nothrow);
    return at == nullptr ? nullptr : static_cast<std::byte*>(std::memset(at, 0, bytes));
#endif
}

/// Gives memory of map_zeroed back, with the same numbers.
inline void unmap_zeroed(std::byte* at, [[maybe_unused]] std::size_t bytes,
                         [[maybe_unused]] std::size_t alignment) noexcept {
#if KVCACHE_POSIX
    ::munmap(at, bytes);
#elif KVCACHE_WINDOWS
    void* information[8] = {}; // a MEMORY_BASIC_INFORMATION; the second field is where the reservation begins
    if (::VirtualQuery(at, reinterpret_cast<struct _MEMORY_BASIC_INFORMATION*>(information), sizeof information) != 0)
        ::VirtualFree(information[1], 0, 0x8000);
#else
    ::operator delete (at, std::align_val_t{alignment});
#endif
}

#if KVCACHE_POSIX

/// What a mapped range of addresses has.
enum class backing {
    nothing, ///< Addresses alone: an access kills the process.
    lazy,    ///< Memory that is committed where it is touched.
    huge,    ///< Huge pages that the administrator reserved, all of them at once; nothing where a system has none.
};

/// A mapped range of this process's addresses, unmapped on destruction. Movable; a move does not relocate the bytes.
class address_range {
public:
    address_range() = default;
    address_range(address_range&& other) noexcept
        : begin_(std::exchange(other.begin_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    address_range& operator=(address_range&& other) noexcept {
        std::swap(begin_, other.begin_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~address_range() {
        if (begin_ != nullptr)
            ::munmap(begin_, size_);
    }

    /// Maps `size` bytes. Returns an empty range and sets errno if the system refuses. Requires: size > 0.
    [[nodiscard]] static address_range map(std::size_t size, backing of) noexcept {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#if defined(MAP_HUGETLB) // without MAP_NORESERVE, the system reserves the pages now or fails now
        flags |= of == backing::huge ? MAP_HUGETLB : 0;
#else
        if (of == backing::huge)
            return {};
#endif
#if defined(MAP_NORESERVE)
        flags |= of == backing::huge ? 0 : MAP_NORESERVE;
#endif
        address_range made;
        const int protection = of == backing::nothing ? PROT_NONE : PROT_READ | PROT_WRITE;
        void* const at = ::mmap(nullptr, size, protection, flags, -1, 0);
        if (at != MAP_FAILED) {
            made.begin_ = static_cast<std::byte*>(at);
            made.size_ = size;
        }
        return made;
    }

    [[nodiscard]] bool empty() const noexcept {
        return begin_ == nullptr;
    }
    [[nodiscard]] std::span<std::byte> bytes() const noexcept {
        return {begin_, size_};
    }

private:
    std::byte* begin_ = nullptr;
    std::size_t size_ = 0;
};

#endif

}}} // namespace kvcache::platform
