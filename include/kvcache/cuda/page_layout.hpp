// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/cuda/device_math.hpp>

#include <bit>
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
        return shape.valid() && shape.whole_tiles() && row_bytes() > 0 && row_bytes() % 16 == 0 &&
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

/// Addresses of the pages of a device storage, passed to kernels by value: at most 64 slabs of contiguous pages.
struct device_page_pool {
    static constexpr std::size_t most_slabs = 64;

    std::uint64_t page_stride = 0; ///< Bytes from one page of a slab to the next.
    std::uint32_t slab_pages = 1;
    std::byte* slabs[most_slabs] = {};

    [[nodiscard]] KVCACHE_HOST_DEVICE std::byte* page(std::uint32_t page) const noexcept {
        return slabs[page / slab_pages] + page % slab_pages * page_stride;
    }
};

/// Loads contiguous floats, four at once if Count is a multiple of four; they are 16-byte aligned then.
template <unsigned Count>
KVCACHE_HOST_DEVICE void load_floats(const float* from, float (&to)[Count]) noexcept {
    if constexpr (Count % 4 == 0) {
        KVCACHE_DEVICE_UNROLL
        for (unsigned i = 0; i < Count; i += 4) {
            const vector16 four = *reinterpret_cast<const vector16*>(from + i);
            KVCACHE_DEVICE_UNROLL
            for (unsigned j = 0; j < 4; ++j)
                to[i + j] = std::bit_cast<float>(four.words[j]);
        }
    } else {
        KVCACHE_DEVICE_UNROLL
        for (unsigned i = 0; i < Count; ++i)
            to[i] = from[i];
    }
}

/// Loads and stores eight contiguous values of a row. `d` is a multiple of 8. The codes of eight values are aligned to
/// their size, at most 16 bytes. The caller applies scales.
template <row_format Format>
struct row_numbers {
    /// For int8 and int4 the integer codes; int4 codes are signed.
    KVCACHE_HOST_DEVICE static void load(const std::byte* row, unsigned d, float (&out)[8]) noexcept {
        if constexpr (Format == row_format::f32) {
            load_floats(reinterpret_cast<const float*>(row) + d, out);
        } else if constexpr (Format == row_format::int8) {
            const auto* const words = reinterpret_cast<const std::uint32_t*>(row + d);
            KVCACHE_DEVICE_UNROLL
            for (unsigned i = 0; i < 8; ++i)
                out[i] = whole((words[i / 4] ^ 0x80808080u) >> (i % 4 * 8) & 0xFFu, 128.0f);
        } else if constexpr (Format == row_format::int4_hadamard) {
            const std::uint32_t word = *reinterpret_cast<const std::uint32_t*>(row + d / 2);
            KVCACHE_DEVICE_UNROLL
            for (unsigned i = 0; i < 8; ++i)
                out[i] = whole(word >> (i * 4) & 0xFu, 8.0f);
        } else {
            const vector16 eight = *reinterpret_cast<const vector16*>(row + d * 2);
            KVCACHE_DEVICE_UNROLL
            for (unsigned i = 0; i < 4; ++i) {
                if constexpr (Format == row_format::bf16) {
                    out[2 * i] = std::bit_cast<float>(eight.words[i] << 16);
                    out[2 * i + 1] = std::bit_cast<float>(eight.words[i] & 0xFFFF0000u);
                } else {
                    out[2 * i] = from_f16(static_cast<std::uint16_t>(eight.words[i] & 0xFFFFu));
                    out[2 * i + 1] = from_f16(static_cast<std::uint16_t>(eight.words[i] >> 16));
                }
            }
        }
    }

    /// For int8 and int4 the values are integer codes; int4 codes are signed.
    KVCACHE_HOST_DEVICE static void store(const float (&numbers)[8], std::byte* row, unsigned d) noexcept {
        if constexpr (Format == row_format::f32) {
            KVCACHE_DEVICE_UNROLL
            for (unsigned half = 0; half < 2; ++half) {
                vector16 four;
                KVCACHE_DEVICE_UNROLL
                for (unsigned i = 0; i < 4; ++i)
                    four.words[i] = std::bit_cast<std::uint32_t>(numbers[4 * half + i]);
                *reinterpret_cast<vector16*>(row + (d + 4 * half) * 4) = four;
            }
        } else if constexpr (Format == row_format::int8) {
            auto* const words = reinterpret_cast<std::uint32_t*>(row + d);
            words[0] = packed<8>(numbers, 0, 4, 0);
            words[1] = packed<8>(numbers, 4, 4, 0);
        } else if constexpr (Format == row_format::int4_hadamard) {
            *reinterpret_cast<std::uint32_t*>(row + d / 2) = packed<4>(numbers, 0, 8, 8);
        } else {
            vector16 eight;
            KVCACHE_DEVICE_UNROLL
            for (unsigned i = 0; i < 4; ++i)
                eight.words[i] = std::uint32_t{sixteen(numbers[2 * i])} | std::uint32_t{sixteen(numbers[2 * i + 1])}
                                                                              << 16;
            *reinterpret_cast<vector16*>(row + d * 2) = eight;
        }
    }

private:
    [[nodiscard]] KVCACHE_HOST_DEVICE static std::uint16_t sixteen(float number) noexcept {
        return Format == row_format::bf16 ? to_bf16(number) : to_f16(number);
    }
    // 2^23 + code is a float whose last bits are the code: exact, and cheaper than a conversion.
    [[nodiscard]] KVCACHE_HOST_DEVICE static float whole(std::uint32_t code, float middle) noexcept {
        return plus(std::bit_cast<float>(0x4B000000u | code), -(8388608.0f + middle));
    }
    template <unsigned Bits>
    [[nodiscard]] KVCACHE_HOST_DEVICE static std::uint32_t packed(const float (&numbers)[8], unsigned first,
                                                                  unsigned count, std::int32_t middle) noexcept {
        std::uint32_t word = 0;
        KVCACHE_DEVICE_UNROLL
        for (unsigned i = 0; i < count; ++i)
            word |= (static_cast<std::uint32_t>(static_cast<std::int32_t>(numbers[first + i]) + middle) &
                     ((1u << Bits) - 1))
                    << (i * Bits);
        return word;
    }
};

}}} // namespace kvcache::cuda
