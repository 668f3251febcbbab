// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <cstddef>
#include <span>
#include <utility>

#include <sys/mman.h>

namespace kvcache { inline namespace KVCACHE_ABI {

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

    /// Maps `size` bytes with mmap. Returns an empty range and sets errno if mmap fails. Requires: size > 0.
    [[nodiscard]] static address_range map(std::size_t size, int protection, int flags) noexcept {
        address_range made;
        void* const at = ::mmap(nullptr, size, protection, flags, -1, 0);
        if (at != MAP_FAILED) {
            made.begin_ = static_cast<std::byte*>(at);
            made.size_ = size;
        }
        return made;
    }

    [[nodiscard]] bool empty() const noexcept { return begin_ == nullptr; }
    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {begin_, size_}; }

private:
    std::byte* begin_ = nullptr;
    std::size_t size_ = 0;
};

}} // namespace kvcache
