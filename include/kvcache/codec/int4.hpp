// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/quantized_pages.hpp>
#include <kvcache/codec/token_coder.hpp>
#include <kvcache/core/errors.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvcache { inline namespace KVCACHE_ABI { namespace codec {

namespace detail {

/// Quantizer to 16 levels, -8 to 7 times the scale. The value of the largest magnitude in a group is level -8, which
/// gives the scale either sign.
struct int4_quantizer {
    static constexpr unsigned bits = 4;
    std::size_t group = 32;

    [[nodiscard]] std::string name() const { return "int4 groups of " + std::to_string(group) + ", byte queries"; }
    template <class Strips>
    [[nodiscard]] f32x16 scale(const Strips& strips, std::size_t first, std::size_t last) const noexcept {
        f32x16 most = f32x16::zero(), least = f32x16::zero();
        for (std::size_t d = first; d < last; ++d) {
            const f32x16 x = strips(d);
            most = max(x, most);
            least = min(x, least);
        }
        // The value of the largest magnitude, with its sign; the negative one if both are equal.
        alignas(64) float up[tile_tokens], down[tile_tokens];
        most.store(up);
        least.store(down);
        for (std::size_t lane = 0; lane < tile_tokens; ++lane)
            up[lane] = up[lane] > -down[lane] ? up[lane] : down[lane];
        return f32x16::load(up) / f32x16::broadcast(-8.0f);
    }
    [[nodiscard]] f32x16 code(const f32x16& x) const noexcept {
        return rounded(x, -8.0f, 7.0f) + f32x16::broadcast(8.0f);
    }
    static constexpr std::int8_t table[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
};

} // namespace detail

/// Quantizes rows to 4 bits with a scale for each group of adjacent values, as llama.cpp's q4_0: 4.5 bits a value for
/// groups of 32. Meant for values; keys with a few large channels need `int4_per_channel` or `hadamard<int4>`.
struct int4 {
    using role = codec_role;
    std::size_t group = 32; ///< Values that share a scale; a multiple of 16.

    [[nodiscard]] auto coder(kv_kind side, page_shape shape) const {
        require(group > 0 && group % 16 == 0 && group <= page_shape::most_head_dim,
                "a group is a multiple of 16 numbers, at most 16384");
        return detail::token_coder(detail::int4_quantizer{group}, side, shape.head_dim);
    }
    [[nodiscard]] auto open(page_shape shape) const { return detail::open_sides(*this, *this, shape); }
};

static_assert(codec_policy<int4>);

}}} // namespace kvcache::codec
