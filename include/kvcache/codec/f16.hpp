// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/float16_coder.hpp>
#include <kvcache/codec/quantized_pages.hpp>

namespace kvcache { inline namespace KVCACHE_ABI { namespace codec {

/// Stores keys and values as binary16: magnitudes from 6e-8 to 65504 with 11 significant bits. Larger magnitudes
/// saturate to 65504.
struct f16 {
    using role = codec_role;
    [[nodiscard]] auto coder(kv_kind side, page_shape shape) const {
        return detail::float16_coder<half>(side, shape.head_dim);
    }
    [[nodiscard]] auto open(page_shape shape) const { return detail::open_sides(*this, *this, shape); }
};

static_assert(codec_policy<f16>);

}}} // namespace kvcache::codec
