// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/inline.hpp>
#include <kvcache/kernel/native.hpp>

#include <cstddef>
#include <cstring>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Accumulators of a tile. (rows, panels * 16), flat: GCC 12 does not keep nested arrays in registers.
template <std::size_t Rows, std::size_t Panels>
using tile_sums = native_floats[Rows * Panels * native_parts];

// A separate function for the one tile of a matrix with fewer outputs than its vectors.
[[gnu::noinline]] inline void copy_rows(const float* from, std::size_t from_stride, float* to, std::size_t to_stride,
                                        std::size_t rows, std::size_t count) {
    for (std::size_t r = 0; r < rows; ++r)
        std::memcpy(to + r * to_stride, from + r * from_stride, count * sizeof(float));
}

/// Loads accumulators from rows of `stride` floats.
template <std::size_t Rows, std::size_t Panels>
KVCACHE_INLINE inline void load_whole(tile_sums<Rows, Panels>& sums, const float* from, std::size_t stride) {
    KVCACHE_UNROLL for (std::size_t r = 0; r < Rows; ++r) {
        KVCACHE_UNROLL for (std::size_t v = 0; v < Panels * native_parts; ++v) sums[r * Panels * native_parts + v] =
            native_floats::load_unaligned(from + v * native_lanes);
        from += stride;
        keep(from); // otherwise GCC computes all addresses first and runs out of registers
    }
}

/// Stores accumulators to rows of `stride` floats.
template <std::size_t Rows, std::size_t Panels>
KVCACHE_INLINE inline void store_whole(const tile_sums<Rows, Panels>& sums, float* to, std::size_t stride) {
    KVCACHE_UNROLL for (std::size_t r = 0; r < Rows; ++r) {
        KVCACHE_UNROLL for (std::size_t v = 0; v < Panels * native_parts; ++v) sums[r * Panels * native_parts + v]
            .store_unaligned(to + v * native_lanes);
        to += stride;
        keep(to);
    }
}

/// Sets accumulators to zero, or loads them from `y`, whose rows may end before the last panel does.
template <std::size_t Rows, std::size_t Panels>
KVCACHE_INLINE inline void begin_sums(tile_sums<Rows, Panels>& sums, const float* y, std::size_t stride,
                                      std::size_t outputs, bool from_zero) {
    if (from_zero) {
        KVCACHE_UNROLL for (std::size_t i = 0; i < Rows * Panels * native_parts; ++i) sums[i] = native_floats(0.0f);
    } else if (outputs >= Panels * 16) {
        load_whole<Rows, Panels>(sums, y, stride);
    } else {
        alignas(64) float whole[Rows * Panels * 16] = {};
        copy_rows(y, stride, whole, Panels * 16, Rows, outputs);
        load_whole<Rows, Panels>(sums, whole, Panels * 16);
    }
}

/// Stores accumulators to `y`, whose rows may end before the last panel does.
template <std::size_t Rows, std::size_t Panels>
KVCACHE_INLINE inline void end_sums(const tile_sums<Rows, Panels>& sums, float* y, std::size_t stride,
                                    std::size_t outputs) {
    if (outputs >= Panels * 16) {
        store_whole<Rows, Panels>(sums, y, stride);
    } else {
        alignas(64) float whole[Rows * Panels * 16];
        store_whole<Rows, Panels>(sums, whole, Panels * 16);
        copy_rows(whole, Panels * 16, y, stride, Rows, outputs);
    }
}

}}} // namespace kvcache::detail
