// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/platform/memory.hpp>
#include <kvcache/cuda/device.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <new>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace cuda {

/// Growable array on a device with a pinned staging buffer on the host, for tables that are sent repeatedly. A failed
/// call leaves the previous state.
template <class T, device Device>
class device_array {
    static_assert(std::is_trivially_copyable_v<T>);

public:
    explicit device_array(Device& device) : device_(&device) {}
    device_array(device_array&& other) noexcept
        : device_(other.device_),
          size_(std::exchange(other.size_, 0)),
          capacity_(std::exchange(other.capacity_, 0)),
          there_(std::exchange(other.there_, nullptr)),
          here_(std::exchange(other.here_, nullptr)),
          sent_(std::exchange(other.sent_, std::nullopt)) {}
    device_array& operator=(device_array&& other) noexcept {
        std::swap(device_, other.device_);
        std::swap(size_, other.size_);
        std::swap(capacity_, other.capacity_);
        std::swap(there_, other.there_);
        std::swap(here_, other.here_);
        std::swap(sent_, other.sent_);
        return *this;
    }
    ~device_array() {
        device_->deallocate(reinterpret_cast<std::byte*>(there_));
        device_->deallocate_pinned(reinterpret_cast<std::byte*>(here_));
        if (sent_)
            device_->close(*sent_);
    }

    /// Device pointer.
    [[nodiscard]] T* data() const noexcept { return there_; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }

    /// Resizes the array; its values are undefined. Errors: out_of_memory, io.
    [[nodiscard]] result<void> resize(std::size_t size) {
        if (size > capacity_)
            if (auto grown = grow(size); !grown)
                return grown;
        size_ = size;
        return {};
    }

    /// Sends `values`, which may change once this returns. Errors: out_of_memory, io.
    [[nodiscard]] result<void> assign(stream_id stream, std::span<const T> values) {
        if (!sent_) {
            auto event = device_->open_event();
            if (!event)
                return event.error();
            sent_ = *event;
        }
        // The previous copy from the staging buffer may still be running.
        if (auto passed = device_->synchronise(*sent_); !passed)
            return passed;
        if (auto room = resize(values.size()); !room || values.empty())
            return room;
        if (here_ == nullptr) {
            auto pinned = device_->allocate_pinned(capacity_ * sizeof(T));
            if (!pinned)
                return pinned.error();
            here_ = reinterpret_cast<T*>(*pinned);
        }
        std::memcpy(here_, values.data(), values.size_bytes());
        const copy_piece piece{reinterpret_cast<const std::byte*>(here_), reinterpret_cast<std::byte*>(there_),
                               values.size_bytes()};
        if (auto copied = device_->copy(stream, copy_way::to_device, {&piece, 1}); !copied)
            return copied;
        return device_->record(*sent_, stream);
    }

private:
    [[nodiscard]] result<void> grow(std::size_t size) {
        const std::size_t wanted = std::max(size, capacity_ + capacity_ / 2);
        auto memory = device_->allocate(wanted * sizeof(T));
        if (!memory)
            return memory.error();
        device_->deallocate(reinterpret_cast<std::byte*>(there_));
        device_->deallocate_pinned(reinterpret_cast<std::byte*>(here_));
        there_ = reinterpret_cast<T*>(*memory);
        here_ = nullptr;
        capacity_ = wanted;
        return {};
    }

    Device* device_;
    std::size_t size_ = 0;
    std::size_t capacity_ = 0;
    T* there_ = nullptr;
    T* here_ = nullptr; // staging buffer of the same capacity, allocated by the first send
    std::optional<event_id> sent_;
};

/// Memory resource of pinned host memory: `heap{.resource = &pinned}` keeps pages that a device copies directly. Throws
/// bad_alloc if no memory can be pinned, which storages report as a failed page.
template <device Device>
class pinned_resource : public pmr::memory_resource {
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
