// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/platform/standard.hpp>
#include <kvcache/cuda/device.hpp>
#include <kvcache/cuda/device_math.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI { namespace cuda {

/// Copies up to 128 pieces in one kernel: between pages, or between pages and pinned host memory, which a device
/// accesses directly. For pieces too small for a copy each. Addresses and sizes are multiples of 16 bytes. A block
/// copies 32 KiB of one piece.
struct batched_copy {
    static constexpr unsigned threads = 256;
    static constexpr std::size_t most = 128;
    static constexpr std::uint64_t block_vectors = 2048;

    std::uint32_t count = 0;
    std::uint32_t blocks_a_piece = 1; ///< Blocks for the longest piece.
    copy_piece pieces[most] = {};

    /// Returns whether a piece has the alignment that this kernel needs.
    [[nodiscard]] static bool takes(const copy_piece& piece) noexcept {
        const auto low =
            reinterpret_cast<std::uintptr_t>(piece.from) | reinterpret_cast<std::uintptr_t>(piece.to) | piece.bytes;
        return low % 16 == 0;
    }
    /// Requires: at most `most` pieces, and takes(piece) for each.
    [[nodiscard]] static batched_copy make(std::span<const copy_piece> pieces) {
        batched_copy kernel;
        kernel.count = static_cast<std::uint32_t>(pieces.size());
        ranges::copy(pieces, kernel.pieces);
        for (const copy_piece& piece : pieces) {
            const std::uint64_t blocks = (piece.bytes / 16 + block_vectors - 1) / block_vectors;
            kernel.blocks_a_piece = std::max(kernel.blocks_a_piece, static_cast<std::uint32_t>(blocks));
        }
        return kernel;
    }

    [[nodiscard]] std::uint64_t blocks() const noexcept { return std::uint64_t{count} * blocks_a_piece; }
    [[nodiscard]] std::size_t shared_bytes() const noexcept { return 0; }

    template <class Group>
    KVCACHE_HOST_DEVICE void operator()(Group& group) const {
        const std::uint64_t piece = group.block() / blocks_a_piece;
        const std::uint64_t first = group.block() % blocks_a_piece * block_vectors;
        const std::uint64_t all = pieces[piece].bytes / 16;
        const auto* const from = reinterpret_cast<const vector16*>(pieces[piece].from);
        auto* const to = reinterpret_cast<vector16*>(pieces[piece].to);
        group.alone([&](unsigned thread) {
            constexpr unsigned each = block_vectors / threads;
            vector16 held[each]; // issue all loads before the first store
            KVCACHE_DEVICE_UNROLL
            for (unsigned i = 0; i < each; ++i)
                if (const std::uint64_t at = first + i * threads + thread; at < all)
                    held[i] = from[at];
            KVCACHE_DEVICE_UNROLL
            for (unsigned i = 0; i < each; ++i)
                if (const std::uint64_t at = first + i * threads + thread; at < all)
                    to[at] = held[i];
        });
    }
};

}}} // namespace kvcache::cuda
