// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/role.hpp>
#include <kvcache/cuda/device.hpp>
#include <kvcache/cuda/page_pool.hpp>
#include <kvcache/cuda/staging_ring.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI::cuda {

/// Bytes of a page and where they are on the host. `here` is only read on the way to the device.
struct page_part {
    page_id page = {};
    std::size_t offset = 0;
    std::span<std::byte> here = {};
};

/// A page whose bytes go to another.
struct page_move {
    page_id from = {};
    page_id to = {};
};

/// Takes pages from a device's memory, in slabs of neighbours when the first of them is used, and keeps them until the
/// cache closes. One slab by default: kernels that know one base address and a page stride read all pages. The host
/// never sees a page's bytes; it copies them. What a page holds when it is acquired is anything.
template <device Device>
struct device_storage {
    using role = storage_role;
    Device* device = nullptr;                       ///< Where pages come from; it outlives the state.
    std::size_t slab_bytes = 0;                     ///< The least bytes of a slab; 0 means one slab for all pages.
    std::size_t ring_bytes = std::size_t{32} << 20; ///< Pinned memory for copies of ordinary memory.
    class state;
    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const;
};

/// Copies go into the stream that is named, many pages a call. `send` and `bring` are for ordinary memory and go
/// through the ring; `load` and `store` are for pinned memory and copy it where it lies.
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
        const std::size_t least = (pages + page_pool::most_slabs - 1) / page_pool::most_slabs;
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

    /// False if the device has no memory left; `status` then says why, nothing has changed, and a later call tries
    /// again.
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

    /// Copies an acquired page to another and waits for it, in a stream of its own: copy on write, of a cache that
    /// knows no streams. What was written to the page before has passed. False if the device refuses; `status` then
    /// says why.
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

    /// Why the last page or copy was refused, if it was. Errors: out_of_memory, io.
    [[nodiscard]] result<void> status() const { return reason_ ? result<void>(*reason_) : result<void>(); }

    [[nodiscard]] Device& device() const noexcept { return *device_; }
    [[nodiscard]] std::size_t pages() const noexcept { return pages_; }
    [[nodiscard]] std::size_t page_bytes() const noexcept { return page_bytes_; }
    /// Where the pages lie, for kernels.
    [[nodiscard]] const page_pool& pool() const noexcept { return pool_; }
    /// Where an acquired page lies on the device.
    [[nodiscard]] std::byte* address(page_id page) const { return pool_.page(index_of(page)); }

    /// From ordinary memory, which may change as soon as this returns. Errors: out_of_memory, io.
    [[nodiscard]] result<void> send(stream_id stream, std::span<const page_part> parts) {
        return ring_.send(stream, staged(parts));
    }
    /// To ordinary memory; returns when the bytes are there. Errors: out_of_memory, io.
    [[nodiscard]] result<void> bring(stream_id stream, std::span<const page_part> parts) {
        return ring_.bring(stream, staged(parts));
    }

    /// From pinned memory, which stays as it is until the stream has passed. Errors: io.
    [[nodiscard]] result<void> load(stream_id stream, std::span<const page_part> parts) {
        copies_.clear();
        for (const page_part& part : parts)
            copies_.push_back({part.here.data(), place(part), part.here.size()});
        return device_->copy(stream, copy_way::to_device, copies_);
    }
    /// To pinned memory, where the bytes are when the stream has passed. Errors: io.
    [[nodiscard]] result<void> store(stream_id stream, std::span<const page_part> parts) {
        copies_.clear();
        for (const page_part& part : parts)
            copies_.push_back({place(part), part.here.data(), part.here.size()});
        return device_->copy(stream, copy_way::to_host, copies_);
    }

    /// Copies the first `bytes` of pages to others on the device: copy on write, forks and compaction. No page of
    /// `moves` is both copied from and to. Errors: io.
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
    page_pool pool_;
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

} // namespace kvcache::cuda
