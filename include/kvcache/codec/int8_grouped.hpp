// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/int8.hpp>
#include <kvcache/core/contract.hpp>

#include <cstddef>

namespace kvcache::inline KVCACHE_ABI {

/// Keeps rows as int8 with a scale for each group of neighbours, as llama.cpp's q8_0 does: 8.5 bits a number for groups
/// of 32. A large number spoils its group only.
struct int8_grouped {
    using role = codec_role;
    std::size_t group = 32; ///< Numbers a scale; a multiple of 16.

    [[nodiscard]] auto coder(page_side side, page_shape shape) const {
        expects(group > 0 && group % 16 == 0, "a group is a multiple of 16 numbers");
        return detail::token_coder(detail::int8_formula{group}, side, shape.head_dim);
    }
    [[nodiscard]] auto open(page_shape shape) const { return detail::open_sides(*this, *this, shape); }
};

static_assert(codec_policy<int8_grouped>);

} // namespace kvcache
