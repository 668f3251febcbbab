// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/int8.hpp>
#include <kvcache/codec/quantized_pages.hpp>

namespace kvcache { inline namespace KVCACHE_ABI { namespace codec {

/// Stores keys with one codec and values with another.
template <sided_codec Keys, sided_codec Values>
struct mixed_kv {
    using role = codec_role;
    Keys keys = {};
    Values values = {};

    [[nodiscard]] auto coder(kv_kind side, page_shape shape) const requires std::same_as<Keys, Values> {
        return side == kv_kind::keys ? keys.coder(side, shape) : values.coder(side, shape);
    }
    [[nodiscard]] auto open(page_shape shape) const { return detail::open_sides(keys, values, shape); }
};

template <class Keys, class Values>
mixed_kv(Keys, Values) -> mixed_kv<Keys, Values>;

static_assert(codec_policy<mixed_kv<int8, int8>>);

}}} // namespace kvcache::codec
