// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/role.hpp>
#include <kvcache/cuda/device.hpp>
#include <kvcache/cuda/page_layout.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace cuda {

/// One copy between ordinary host memory and a device.
struct staged_piece {
    std::byte* there = nullptr; ///< Device address.
    std::byte* here = nullptr;  ///< Host address; only read for copies to the device.
    std::size_t bytes = 0;
};

/// Pinned memory through which ordinary host memory is copied to and from a device. Four segments are used in turn,
/// each for one batch of copies, so that the host fills one while others are being copied. Allocated at first use.
template <device Device>
class staging_ring {
public:
    staging_ring(Device& device, std::size_t bytes)
        : device_(&device), segment_bytes_(std::max<std::size_t>(bytes / segments, 256)) {}
    staging_ring(staging_ring&& other) noexcept
        : device_(other.device_),
          segment_bytes_(other.segment_bytes_),
          next_(other.next_),
          memory_(std::exchange(other.memory_, nullptr)),
          events_(std::exchange(other.events_, {})) {}
    staging_ring& operator=(staging_ring&& other) noexcept {
        std::swap(device_, other.device_);
        std::swap(segment_bytes_, other.segment_bytes_);
        std::swap(next_, other.next_);
        std::swap(memory_, other.memory_);
        std::swap(events_, other.events_);
        return *this;
    }
    ~staging_ring() {
        for (const event_id event : events_)
            (void)device_->synchronise(event);
        device_->deallocate_pinned(memory_);
        for (const event_id event : events_)
            device_->close(event);
    }

    /// Enqueues copies to the device; the sources may change once this returns. Errors: out_of_memory, io.
    [[nodiscard]] result<void> send(stream_id stream, std::span<const staged_piece> pieces) {
        if (auto ready = open(); !ready)
            return ready;
        for (cursor at{pieces}; !at.finished();) {
            const std::size_t segment = turn();
            if (auto passed = device_->synchronise(events_[segment]); !passed)
                return passed;
            const auto batch = cut(at, segment);
            for (const part& each : batch)
                std::memcpy(each.pinned, each.here, each.bytes);
            copies_.clear();
            for (const part& each : batch)
                copies_.push_back({each.pinned, each.there, each.bytes});
            if (auto sent = submit(stream, copy_way::to_device, segment); !sent)
                return sent;
        }
        return {};
    }

    /// Copies from the device, and returns when all bytes have arrived. Errors: out_of_memory, io; some bytes may have
    /// arrived then.
    [[nodiscard]] result<void> bring(stream_id stream, std::span<const staged_piece> pieces) {
        if (auto ready = open(); !ready)
            return ready;
        std::deque<std::pair<std::size_t, std::vector<part>>> under_way;
        for (cursor at{pieces}; !at.finished() || !under_way.empty();) {
            if (at.finished() || under_way.size() == segments) {
                const auto& [segment, batch] = under_way.front();
                if (auto passed = device_->synchronise(events_[segment]); !passed)
                    return passed;
                for (const part& each : batch)
                    std::memcpy(each.here, each.pinned, each.bytes);
                under_way.pop_front();
                continue;
            }
            const std::size_t segment = turn();
            if (auto passed = device_->synchronise(events_[segment]); !passed)
                return passed;
            auto batch = cut(at, segment);
            copies_.clear();
            for (const part& each : batch)
                copies_.push_back({each.there, each.pinned, each.bytes});
            if (auto sent = submit(stream, copy_way::to_host, segment); !sent)
                return sent;
            under_way.emplace_back(segment, std::move(batch));
        }
        return {};
    }

private:
    static constexpr std::size_t segments = 4;
    struct part {
        std::byte* there;
        std::byte* here;
        std::byte* pinned;
        std::size_t bytes;
    };
    struct cursor {
        std::span<const staged_piece> pieces;
        std::size_t piece = 0;
        std::size_t offset = 0;

        [[nodiscard]] bool finished() {
            while (piece < pieces.size() && offset == pieces[piece].bytes)
                ++piece, offset = 0;
            return piece == pieces.size();
        }
    };

    [[nodiscard]] std::size_t turn() noexcept { return next_ = (next_ + 1) % segments; }

    // As many pieces as fit a segment; a large piece is cut.
    [[nodiscard]] std::vector<part> cut(cursor& at, std::size_t segment) const {
        std::vector<part> batch;
        std::byte* const begin = memory_ + segment * segment_bytes_;
        for (std::size_t used = 0; used < segment_bytes_ && !at.finished();) {
            const staged_piece& piece = at.pieces[at.piece];
            const std::size_t bytes = std::min(piece.bytes - at.offset, segment_bytes_ - used);
            batch.push_back({piece.there + at.offset, piece.here + at.offset, begin + used, bytes});
            at.offset += bytes;
            used += (bytes + 15) / 16 * 16; // aligns each part to a vector
        }
        return batch;
    }

    [[nodiscard]] result<void> submit(stream_id stream, copy_way way, std::size_t segment) {
        if (auto copied = device_->copy(stream, way, copies_); !copied)
            return copied;
        return device_->record(events_[segment], stream);
    }

    [[nodiscard]] result<void> open() {
        while (events_.size() < segments) {
            auto event = device_->open_event();
            if (!event)
                return event.error();
            events_.push_back(*event);
        }
        if (memory_ == nullptr) {
            auto pinned = device_->allocate_pinned(segments * segment_bytes_);
            if (!pinned)
                return pinned.error();
            memory_ = *pinned;
        }
        return {};
    }

    Device* device_;
    std::size_t segment_bytes_;
    std::size_t next_ = 0;
    std::byte* memory_ = nullptr;
    std::vector<event_id> events_;
    std::vector<copy_piece> copies_;
};

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
