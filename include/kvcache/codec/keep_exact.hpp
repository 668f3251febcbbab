// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/int8.hpp>

#include <cstddef>

namespace kvcache { inline namespace KVCACHE_ABI { namespace codec {

/// Reads the first tokens of a sequence in full precision, and the others as another codec stores them: queries at
/// every position attend strongly to the first tokens. Covers the whole pages that hold these tokens. Their
/// full-precision rows live as long as the page. (Xiao et al. 2024, StreamingLLM)
template <codec_policy Inner = int8>
struct keep_sinks {
    using role = codec_role;
    Inner inner = {};
    std::size_t tokens = 4; ///< Minimum number of first tokens; rounded up to whole pages.

    [[nodiscard]] auto open(page_shape shape) const { return inner.open(shape).with_first(tokens); }
};

static_assert(codec_policy<keep_sinks<int8>>);

/// Reads the pages directly before a query's own in full precision, and the others as another codec stores them. A
/// sequence keeps the full-precision rows of its last pages, and leaves them in the cache with these pages when it
/// ends. A match ends only where as many full-precision pages precede it as a query reads.
template <codec_policy Inner = int8>
struct keep_recent {
    using role = codec_role;
    Inner inner = {};
    std::size_t pages = 1;

    [[nodiscard]] auto open(page_shape shape) const { return inner.open(shape).with_recent(pages); }
};

static_assert(codec_policy<keep_recent<int8>>);

}}} // namespace kvcache::codec
