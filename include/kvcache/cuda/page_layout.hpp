// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/shape.hpp>
#include <kvcache/cuda/host_device.hpp>

#include <cstddef>
#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI { namespace cuda {

/// Storage format of a row of head_dim values on a device.
enum class row_format : std::uint32_t {
    f32,           ///< Nothing lost: what the host's plain codec keeps.
    f16,           ///< IEEE binary16.
    bf16,          ///< bfloat16.
    int8,          ///< Integers from -127 to 127 with one scale a row.
    int4_hadamard, ///< Transformed by a Hadamard matrix, then 4 bits with a scale for each 32 values.
};

/// Values of a row that share a scale in `int4_hadamard`.
inline constexpr std::uint32_t int4_group = 32;

/// Order of rows in a page: token by token (NHD) or head by head (HND), in FlashInfer's terms.
enum class kv_layout : std::uint32_t { nhd, hnd };

/// Keys or values.
enum class row_side : std::uint32_t { keys, values };

/// Layout of a page on a device. A page holds all layers. A layer holds its keys, then its values, each as codes
/// followed by binary16 scales, for formats with scales:
///
///     page:  [ layer 0: keys, values ][ layer 1 ] ...
///     side:  [ codes: nhd (tokens, kv_heads, head_dim) or hnd (kv_heads, tokens, head_dim) ]
///            [ scales: the same order, (..., scales a row) ]
///
/// A layer of an f16 or bf16 page is one page of a (pages, 2, ...) tensor as in vLLM and FlashInfer, with a page stride
/// that spans all layers. All offsets are in bytes and 64 bits wide.
struct page_layout {
    page_shape shape = {};
    kv_layout order = kv_layout::nhd;
    row_format format = row_format::bf16;

    friend constexpr bool operator==(const page_layout&, const page_layout&) = default;

    /// Returns whether rows of this format are whole vectors of 16 bytes.
    [[nodiscard]] constexpr bool valid() const noexcept {
        return shape.valid() && row_bytes() > 0 && row_bytes() % 16 == 0 &&
               (format != row_format::int4_hadamard || shape.head_dim % int4_group == 0);
    }

    /// Bytes of a row's codes.
    [[nodiscard]] KVCACHE_HOST_DEVICE constexpr std::uint64_t row_bytes() const noexcept {
        const std::uint64_t numbers = shape.head_dim;
        return format == row_format::f32             ? 4 * numbers
               : format == row_format::int8          ? numbers
               : format == row_format::int4_hadamard ? numbers / 2
                                                     : 2 * numbers;
    }
    /// Scales of a row.
    [[nodiscard]] KVCACHE_HOST_DEVICE constexpr std::uint64_t row_scales() const noexcept {
        return format == row_format::int8 ? 1 : format == row_format::int4_hadamard ? shape.head_dim / int4_group : 0;
    }
    /// Rows of a layer's keys.
    [[nodiscard]] KVCACHE_HOST_DEVICE constexpr std::uint64_t side_rows() const noexcept {
        return std::uint64_t{shape.tokens} * shape.kv_heads;
    }
    [[nodiscard]] KVCACHE_HOST_DEVICE constexpr std::uint64_t side_bytes() const noexcept {
        return (side_rows() * (row_bytes() + 2 * row_scales()) + 15) / 16 * 16;
    }
    [[nodiscard]] KVCACHE_HOST_DEVICE constexpr std::uint64_t layer_bytes() const noexcept { return 2 * side_bytes(); }
    [[nodiscard]] KVCACHE_HOST_DEVICE constexpr std::uint64_t page_bytes() const noexcept {
        return shape.layers * layer_bytes();
    }

    /// Rows from one token to the next of the same head.
    [[nodiscard]] KVCACHE_HOST_DEVICE constexpr std::uint64_t token_stride() const noexcept {
        return order == kv_layout::nhd ? shape.kv_heads : 1;
    }
    /// Rows from one head to the next of the same token.
    [[nodiscard]] KVCACHE_HOST_DEVICE constexpr std::uint64_t head_stride() const noexcept {
        return order == kv_layout::nhd ? 1 : shape.tokens;
    }

    /// Offset of a layer's keys or values in a page.
    [[nodiscard]] KVCACHE_HOST_DEVICE constexpr std::uint64_t side(std::uint32_t layer, row_side side) const noexcept {
        return layer * layer_bytes() + static_cast<std::uint64_t>(side) * side_bytes();
    }
    /// Row index of a token and head in a side.
    [[nodiscard]] KVCACHE_HOST_DEVICE constexpr std::uint64_t row(std::uint32_t token,
                                                                  std::uint32_t head) const noexcept {
        return token * token_stride() + head * head_stride();
    }
    /// Offset of a row's codes in its side.
    [[nodiscard]] KVCACHE_HOST_DEVICE constexpr std::uint64_t codes(std::uint64_t row) const noexcept {
        return row * row_bytes();
    }
    /// Offset of a row's scales in its side.
    [[nodiscard]] KVCACHE_HOST_DEVICE constexpr std::uint64_t scales(std::uint64_t row) const noexcept {
        return side_rows() * row_bytes() + row * 2 * row_scales();
    }
};

}}} // namespace kvcache::cuda
