// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <version>

// std::pmr::memory_resource as kvcache::pmr::memory_resource. libc++ has it since version 16, and macOS since 14.

#if defined(__cpp_lib_memory_resource)

#include <memory_resource>

namespace kvcache { inline namespace KVCACHE_ABI {
namespace pmr = std::pmr;
}} // namespace kvcache

#else

#include <cstddef>
#include <new>

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
