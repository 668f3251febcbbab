// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/coded_pages.hpp>
#include <kvcache/codec/int4.hpp>
#include <kvcache/kernel/hadamard.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <utility>

namespace kvcache::inline KVCACHE_ABI {

namespace detail {

/// Codes rows that a Hadamard matrix has turned.
template <side_coder Inner>
class turning_coder : public Inner {
public:
    explicit turning_coder(Inner inner) : Inner(std::move(inner)) {}

    [[nodiscard]] std::string name() const { return "rotated " + Inner::name(); }
    void turn(std::span<float> row) const noexcept { hadamard(row); }
    void turn_back(std::span<float> row) const noexcept { hadamard(row); }
};

} // namespace detail

/// Turns rows by a Hadamard matrix before another codec keeps them, so that a large channel is shared by all numbers of
/// its block: the largest power of two that divides head_dim. Keys are turned behind the rotation of positions, and
/// queries with them; values are turned back in what attention gives. (Ashkboos et al. 2024, QuaRot)
template <sided_codec Inner = int4>
struct rotated {
    using role = codec_role;
    Inner inner = {};

    [[nodiscard]] auto coder(page_side side, page_shape shape) const {
        return detail::turning_coder(inner.coder(side, shape));
    }
    [[nodiscard]] auto open(page_shape shape) const { return detail::open_sides(*this, *this, shape); }
};

template <class Inner>
rotated(Inner) -> rotated<Inner>;

static_assert(codec_policy<rotated<int4>>);

} // namespace kvcache
