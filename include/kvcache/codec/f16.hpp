// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/coded_pages.hpp>
#include <kvcache/codec/wide_coder.hpp>

namespace kvcache::inline KVCACHE_ABI {

/// Keeps keys and values as binary16: sizes from 6e-8 to 65504, to 11 bits. What is past the largest becomes that
/// number.
struct f16 {
    using role = codec_role;
    [[nodiscard]] auto coder(page_side side, page_shape shape) const {
        return detail::wide_coder<half>(side, shape.head_dim);
    }
    [[nodiscard]] auto open(page_shape shape) const { return detail::open_sides(*this, *this, shape); }
};

static_assert(codec_policy<f16>);

} // namespace kvcache
