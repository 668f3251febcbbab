// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>

#include <cstddef>
#include <string>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace codec {

/// For pages in the host's own memory, which the cache never reads: it says how large one is and how the host lays it
/// out. Standard with storage::external.
struct external {
    using role = codec_role;
    std::size_t page_bytes = 0;            ///< Bytes of a page; 0 means keys and values of the shape in 16 bits.
    std::string layout = "the host's own"; ///< Becomes part of the identity.

    class state {
    public:
        state(std::size_t bytes, std::string layout) : bytes_(bytes), layout_(std::move(layout)) {}
        [[nodiscard]] std::size_t page_bytes() const noexcept { return bytes_; }
        [[nodiscard]] std::string name() const { return "external"; }
        [[nodiscard]] std::string layout_name() const { return layout_; }
        [[nodiscard]] std::string backend() const { return "host"; }

    private:
        std::size_t bytes_;
        std::string layout_;
    };

    [[nodiscard]] state open(page_shape shape) const {
        const std::size_t numbers = std::size_t{2} * shape.layers * shape.kv_heads * shape.head_dim * shape.tokens;
        return {page_bytes > 0 ? page_bytes : 2 * numbers, layout};
    }
};

static_assert(codec_policy<external>);

}}} // namespace kvcache::codec
