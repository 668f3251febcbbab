// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/coded_pages.hpp>
#include <kvcache/codec/token_coder.hpp>

#include <cstddef>
#include <string>

namespace kvcache::inline KVCACHE_ABI {

namespace detail {

/// The nearest of 255 steps, from minus to plus the largest size.
struct int8_formula {
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

/// Keeps each row of a head as int8 with one scale, its largest size / 127, as binary16: 8.125 bits a number at a
/// head_dim of 128. Of a longer row each part has one: as few parts of one size, a multiple of 16, as hold 128 each.
struct int8 {
    using role = codec_role;
    [[nodiscard]] auto coder(page_side side, page_shape shape) const {
        const std::size_t parts = (std::size_t{shape.head_dim} + 127) / 128;
        const std::size_t each = (shape.head_dim + 16 * parts - 1) / (16 * parts) * 16;
        return detail::token_coder(detail::int8_formula{parts == 1 ? 0 : each}, side, shape.head_dim);
    }
    [[nodiscard]] auto open(page_shape shape) const { return detail::open_sides(*this, *this, shape); }
};

static_assert(codec_policy<int8>);

} // namespace kvcache
