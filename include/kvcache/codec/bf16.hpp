// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/float16_coder.hpp>
#include <kvcache/codec/quantized_pages.hpp>

namespace kvcache { inline namespace KVCACHE_ABI { namespace codec {

/// Stores keys and values as bfloat16: the range of float32 with 8 significant bits. Larger magnitudes saturate to the
/// largest finite bfloat16.
struct bf16 {
    using role = codec_role;
    [[nodiscard]] auto coder(kv_kind side, page_shape shape) const {
        return detail::float16_coder<bfloat16>(side, shape.head_dim);
    }
    [[nodiscard]] auto open(page_shape shape) const { return detail::open_sides(*this, *this, shape); }
};

static_assert(codec_policy<bf16>);

}}} // namespace kvcache::codec
