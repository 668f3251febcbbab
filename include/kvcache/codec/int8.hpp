// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/quantized_pages.hpp>
#include <kvcache/codec/token_coder.hpp>
#include <kvcache/core/errors.hpp>

#include <cstddef>
#include <string>

namespace kvcache { inline namespace KVCACHE_ABI { namespace codec {

namespace detail {

/// Quantizer to the nearest of 255 levels, from minus to plus the largest magnitude.
struct int8_quantizer {
    static constexpr unsigned bits = 8;
    std::size_t group = 0;

    [[nodiscard]] std::string name() const { return group == 0 ? "int8" : "int8 groups of " + std::to_string(group); }
    template <class Strips>
    [[nodiscard]] f32x16 scale(const Strips& strips, std::size_t first, std::size_t last) const noexcept {
        return largest_size(strips, first, last) / f32x16::broadcast(127.0f);
    }
    [[nodiscard]] f32x16 code(const f32x16& x) const noexcept { return rounded(x, -127.0f, 127.0f); }
};

} // namespace detail

/// Quantizes each row of a head to int8 with one binary16 scale, the largest magnitude / 127: 8.125 bits a value at
/// head_dim 128. A longer row is split into as few parts of at most 128 values as possible, each with its own scale;
/// the part size is a multiple of 16.
struct int8 {
    using role = codec_role;
    [[nodiscard]] auto coder(kv_kind side, page_shape shape) const {
        const std::size_t parts = (std::size_t{shape.head_dim} + 127) / 128;
        const std::size_t each = (shape.head_dim + 16 * parts - 1) / (16 * parts) * 16;
        return detail::token_coder(detail::int8_quantizer{parts == 1 ? 0 : each}, side, shape.head_dim);
    }
    [[nodiscard]] auto open(page_shape shape) const { return detail::open_sides(*this, *this, shape); }
};

static_assert(codec_policy<int8>);

/// Quantizes rows to int8 with a scale for each group of adjacent values, as llama.cpp's q8_0: 8.5 bits a value for
/// groups of 32. An outlier degrades only its own group.
struct int8_grouped {
    using role = codec_role;
    std::size_t group = 32; ///< Values that share a scale; a multiple of 16.

    [[nodiscard]] auto coder(kv_kind side, page_shape shape) const {
        require(group > 0 && group % 16 == 0 && group <= page_shape::most_head_dim,
                "a group is a multiple of 16 numbers, at most 16384");
        return detail::token_coder(detail::int8_quantizer{group}, side, shape.head_dim);
    }
    [[nodiscard]] auto open(page_shape shape) const { return detail::open_sides(*this, *this, shape); }
};

static_assert(codec_policy<int8_grouped>);

}}} // namespace kvcache::codec
