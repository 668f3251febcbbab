// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/core/joined.hpp>
#include <kvcache/core/shape.hpp>

#include <string>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

// A host's identity with the fields that the cache itself decides: codec, layout, page size, device backend.
template <class Codec>
[[nodiscard]] identity complete_identity(identity id, const Codec& codec, const page_shape& shape) {
    id.codec = codec.name();
    id.layout = "key tiles of 16, value rows";
    if constexpr (requires { codec.layout_name(); })
        id.layout = codec.layout_name();
    if constexpr (device_codec_state<Codec>)
        id.backend = codec.backend();
    else
        id.layout += joined({"; ", std::to_string(shape.layers), " layers, ", std::to_string(shape.kv_heads),
                             " KV heads of ", std::to_string(shape.head_dim)});
    id.page_tokens = shape.tokens;
    return id;
}

// The key of a keyed hash policy, which also authenticates records; empty for a hash without a key.
template <class Hash>
[[nodiscard]] std::string secret_of(const Hash& hash) {
    if constexpr (requires { std::string(hash.key); })
        return hash.key;
    else
        return {};
}

}}} // namespace kvcache::detail
