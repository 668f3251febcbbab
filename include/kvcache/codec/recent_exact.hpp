// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/int8.hpp>

#include <cstddef>

namespace kvcache::inline KVCACHE_ABI {

/// Reads the pages right before a query's own as they were computed, whatever another codec makes of the others. A
/// sequence keeps the exact rows of its last pages, and leaves them behind when it ends: a match ends only where as
/// many exact pages are before it as a query reads.
template <codec_policy Inner = int8>
struct recent_exact {
    using role = codec_role;
    Inner inner = {};
    std::size_t pages = 1;

    [[nodiscard]] auto open(page_shape shape) const { return inner.open(shape).with_recent(pages); }
};

static_assert(codec_policy<recent_exact<int8>>);

} // namespace kvcache
