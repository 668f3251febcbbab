// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/cuda/device.hpp>

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <span>
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

}}} // namespace kvcache::cuda
