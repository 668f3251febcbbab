// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cuda/device_math.hpp>
#include <kvcache/cuda/page_layout.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI { namespace cuda {

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
