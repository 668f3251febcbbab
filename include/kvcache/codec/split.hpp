// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/coded_pages.hpp>
#include <kvcache/codec/int8.hpp>

namespace kvcache::inline KVCACHE_ABI {

/// Keeps keys as one codec does and values as another.
template <sided_codec Keys, sided_codec Values>
struct split {
    using role = codec_role;
    Keys keys = {};
    Values values = {};

    [[nodiscard]] auto coder(page_side side, page_shape shape) const requires std::same_as<Keys, Values> {
        return side == page_side::keys ? keys.coder(side, shape) : values.coder(side, shape);
    }
    [[nodiscard]] auto open(page_shape shape) const { return detail::open_sides(keys, values, shape); }
};

template <class Keys, class Values>
split(Keys, Values) -> split<Keys, Values>;

static_assert(codec_policy<split<int8, int8>>);

} // namespace kvcache
