// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/coded_pages.hpp>
#include <kvcache/codec/wide_coder.hpp>

namespace kvcache::inline KVCACHE_ABI {

/// Keeps keys and values as bfloat16: any size that a float32 has, to 8 bits. What is past the largest bfloat16 becomes
/// that number.
struct bf16 {
    using role = codec_role;
    [[nodiscard]] auto coder(page_side side, page_shape shape) const {
        return detail::wide_coder<bfloat16>(side, shape.head_dim);
    }
    [[nodiscard]] auto open(page_shape shape) const { return detail::open_sides(*this, *this, shape); }
};

static_assert(codec_policy<bf16>);

} // namespace kvcache
