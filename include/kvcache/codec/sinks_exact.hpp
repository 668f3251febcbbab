// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/int8.hpp>

#include <cstddef>

namespace kvcache::inline KVCACHE_ABI {

/// Reads the first tokens of a sequence as they were computed, whatever another codec makes of the others: a model
/// looks at them from everywhere. Whole pages, as many as hold the tokens; their exact rows live as long as the page
/// does. (Xiao et al. 2024, StreamingLLM)
template <codec_policy Inner = int8>
struct sinks_exact {
    using role = codec_role;
    Inner inner = {};
    std::size_t tokens = 4; ///< At least so many.

    [[nodiscard]] auto open(page_shape shape) const { return inner.open(shape).with_first(tokens); }
};

static_assert(codec_policy<sinks_exact<int8>>);

} // namespace kvcache
