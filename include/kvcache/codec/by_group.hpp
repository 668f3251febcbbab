// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/f32.hpp>

namespace kvcache { inline namespace KVCACHE_ABI { namespace codec {

/// One format for the cache's pages, which are those of the first full group, and another for the blocks of the other
/// layer groups: for example full attention in int8, and windows in float32. Only with layers::grouped. Codecs of
/// blocks write row by row.
template <codec_policy Pages, codec_policy Blocks>
struct by_group {
    using role = codec_role;
    Pages pages = {};   ///< Of the first full group.
    Blocks blocks = {}; ///< Of the others.

    [[nodiscard]] auto open(page_shape shape) const { return pages.open(shape); }
};
template <class Pages, class Blocks>
by_group(Pages, Blocks) -> by_group<Pages, Blocks>;

static_assert(codec_policy<by_group<f32, f32>>);

}}} // namespace kvcache::codec
