// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/role.hpp>
#include <kvcache/cuda/device.hpp>
#include <kvcache/cuda/device_page_pool.hpp>
#include <kvcache/cuda/staging_ring.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace cuda {

/// Byte range of a page, and its host memory, which is only read for copies to the device.
struct page_part {
    page_id page = {};
    std::size_t offset = 0;
    std::span<std::byte> here = {};
};

/// Copy of one page to another.
struct page_move {
    page_id from = {};
    page_id to = {};
};

/// Storage of pages in device memory. A slab of contiguous pages is allocated when its first page is acquired, and kept
/// until the cache closes. The default is one slab: kernels that take one base address and a page stride can read all
/// pages. The host never reads a page's bytes in place; it copies them. An acquired page has undefined content.
template <device Device>
struct device_storage {
    using role = storage_role;
    Device* device = nullptr;   ///< Device that allocates the pages. Requires: it outlives the state.
    std::size_t slab_bytes = 0; ///< Minimum bytes of a slab; 0: one slab for all pages.
    std::size_t ring_bytes = std::size_t{32} << 20; ///< Pinned memory for copies of ordinary memory.
    class state;
    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const;
};

/// Copies run in the given stream, many pages a call. `send` and `bring` copy ordinary memory through the staging ring;
/// `load` and `store` copy pinned memory directly.
template <device Device>
class device_storage<Device>::state {
public:
    state(const device_storage& options, std::size_t pages, std::size_t page_bytes)
        : device_(options.device),
          pages_(pages),
          page_bytes_(page_bytes),
          ring_((expects(options.device != nullptr, "a device storage has a device"), *options.device),
                options.ring_bytes) {
        pool_.page_stride = (page_bytes + 255) / 256 * 256;
        const std::size_t least = (pages + device_page_pool::most_slabs - 1) / device_page_pool::most_slabs;
        const std::size_t wanted =
            options.slab_bytes == 0 ? pages : options.slab_bytes / std::max<std::size_t>(pool_.page_stride, 1);
        pool_.slab_pages = static_cast<std::uint32_t>(
            std::clamp<std::size_t>(wanted, std::max<std::size_t>(least, 1), std::max<std::size_t>(pages, 1)));
    }

    state(state&& other) noexcept
        : device_(other.device_),
          pages_(other.pages_),
          page_bytes_(other.page_bytes_),
          pool_(std::exchange(other.pool_, {})),
          reason_(std::exchange(other.reason_, std::nullopt)),
          own_(std::exchange(other.own_, std::nullopt)),
          ring_(std::move(other.ring_)) {}
    state& operator=(state&& other) noexcept {
        std::swap(device_, other.device_);
        std::swap(pages_, other.pages_);
        std::swap(page_bytes_, other.page_bytes_);
        std::swap(pool_, other.pool_);
        std::swap(reason_, other.reason_);
        std::swap(own_, other.own_);
        std::swap(ring_, other.ring_);
        return *this;
    }
    ~state() {
        if (own_)
            device_->close(*own_);
        for (std::byte* const slab : pool_.slabs)
            device_->deallocate(slab);
    }

    /// Returns false if the device is out of memory. `status` then has the error, nothing has changed, and a later call
    /// tries again.
    [[nodiscard]] bool acquire(page_id page) {
        expects(index_of(page) < pages_, "a page is of the storage");
        const std::size_t slab = index_of(page) / pool_.slab_pages;
        reason_.reset();
        if (pool_.slabs[slab] != nullptr)
            return true;
        const std::size_t held = std::min<std::size_t>(pool_.slab_pages, pages_ - slab * pool_.slab_pages);
        auto memory = device_->allocate(held * pool_.page_stride);
        if (!memory) {
            reason_ = memory.error();
            return false;
        }
        pool_.slabs[slab] = *memory;
        return true;
    }
    void release(page_id) noexcept {}

    /// Copies an acquired page to another in a stream of its own and waits for it: copy-on-write for a cache that has
    /// no streams. Requires: earlier writes to the page have completed. Returns false if the device fails; `status`
    /// then has the error.
    [[nodiscard]] bool copy(page_id from, page_id to) const {
        reason_.reset();
        if (!own_) {
            auto opened = device_->open_stream();
            if (!opened) {
                reason_ = opened.error();
                return false;
            }
            own_ = *opened;
        }
        const copy_piece piece{place({from, 0, {}}), place({to, 0, {}}), page_bytes_};
        if (const auto put = device_->copy(*own_, copy_way::within_device, {&piece, 1}); !put)
            reason_ = put.error();
        else if (const auto passed = device_->synchronise(*own_); !passed)
            reason_ = passed.error();
        return !reason_;
    }

    /// Error of the last acquire or copy, if it failed. Errors: out_of_memory, io.
    [[nodiscard]] result<void> status() const { return reason_ ? result<void>(*reason_) : result<void>(); }

    [[nodiscard]] Device& device() const noexcept { return *device_; }
    [[nodiscard]] std::size_t pages() const noexcept { return pages_; }
    [[nodiscard]] std::size_t page_bytes() const noexcept { return page_bytes_; }
    /// Addresses of the pages, for kernels.
    [[nodiscard]] const device_page_pool& pool() const noexcept { return pool_; }
    /// Device address of an acquired page.
    [[nodiscard]] std::byte* address(page_id page) const { return pool_.page(index_of(page)); }

    /// Copies from ordinary memory, which may change once this returns. Errors: out_of_memory, io.
    [[nodiscard]] result<void> send(stream_id stream, std::span<const page_part> parts) {
        return ring_.send(stream, staged(parts));
    }
    /// Copies to ordinary memory; returns when the bytes have arrived. Errors: out_of_memory, io.
    [[nodiscard]] result<void> bring(stream_id stream, std::span<const page_part> parts) {
        return ring_.bring(stream, staged(parts));
    }

    /// Copies from pinned memory, which must stay unchanged until the stream has passed. Errors: io.
    [[nodiscard]] result<void> load(stream_id stream, std::span<const page_part> parts) {
        copies_.clear();
        for (const page_part& part : parts)
            copies_.push_back({part.here.data(), place(part), part.here.size()});
        return device_->copy(stream, copy_way::to_device, copies_);
    }
    /// Copies to pinned memory, which has the bytes once the stream has passed. Errors: io.
    [[nodiscard]] result<void> store(stream_id stream, std::span<const page_part> parts) {
        copies_.clear();
        for (const page_part& part : parts)
            copies_.push_back({place(part), part.here.data(), part.here.size()});
        return device_->copy(stream, copy_way::to_host, copies_);
    }

    /// Copies the first `bytes` of pages to other pages on the device: copy-on-write, forks and compaction. Requires:
    /// no page of `moves` is both source and destination. Errors: io.
    [[nodiscard]] result<void> move(stream_id stream, std::span<const page_move> moves, std::size_t bytes) {
        expects(bytes <= page_bytes_, "no more is copied than a page has");
        copies_.clear();
        for (const page_move& each : moves)
            copies_.push_back({place({each.from, 0, {}}), place({each.to, 0, {}}), bytes});
        return device_->copy(stream, copy_way::within_device, copies_);
    }

private:
    [[nodiscard]] std::byte* place(const page_part& part) const {
        expects(index_of(part.page) < pages_ && part.offset + part.here.size() <= page_bytes_,
                "what is copied lies in a page");
        expects(pool_.slabs[index_of(part.page) / pool_.slab_pages] != nullptr, "a page is acquired before it is used");
        return address(part.page) + part.offset;
    }
    [[nodiscard]] std::span<const staged_piece> staged(std::span<const page_part> parts) {
        pieces_.clear();
        for (const page_part& part : parts)
            pieces_.push_back({place(part), part.here.data(), part.here.size()});
        return pieces_;
    }

    Device* device_;
    std::size_t pages_;
    std::size_t page_bytes_;
    device_page_pool pool_;
    mutable std::optional<error> reason_;
    mutable std::optional<stream_id> own_;
    staging_ring<Device> ring_;
    std::vector<copy_piece> copies_;
    std::vector<staged_piece> pieces_;
};

template <device Device>
typename device_storage<Device>::state device_storage<Device>::open(std::size_t pages, std::size_t page_bytes) const {
    return {*this, pages, page_bytes};
}

}}} // namespace kvcache::cuda
