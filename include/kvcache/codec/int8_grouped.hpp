// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/int8.hpp>
#include <kvcache/core/contract.hpp>

#include <cstddef>

namespace kvcache { inline namespace KVCACHE_ABI { namespace codec {

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
