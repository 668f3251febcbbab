// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/config.hpp>
#include <kvcache/cache/page_index.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/core/shape.hpp>

#include <cstddef>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

// The shape of a cache's pages: for layer groups that of the first full one.
template <class Layers>
[[nodiscard]] page_shape shape_of(const page_shape& given, [[maybe_unused]] const Layers& layers) {
    if constexpr (requires { layers.page_shape(); })
        return layers.page_shape();
    else
        return given;
}

// By group: the bytes of a block.
template <class Layers, class Codec>
[[nodiscard]] std::vector<std::size_t> block_bytes_of(const Layers& layers, const Codec& codec) {
    std::vector<std::size_t> bytes;
    for (std::size_t group = 0; group < layers.layout.groups.size(); ++group) {
        const auto& of = layers.layout.groups[group];
        const std::size_t own = group < layers.block_bytes.size() ? layers.block_bytes[group] : 0;
        bytes.push_back(own > 0         ? own
                        : of.has_rows() ? codec.open(layers.layout.shape(group)).page_bytes()
                                        : of.state_bytes);
    }
    return bytes;
}

// The number of pages within a limit. Pages without a full group hold nothing; there are sixteen for each block.
template <class Layers, class Codec>
[[nodiscard]] std::size_t pages_in(cache_limits limit, [[maybe_unused]] const Layers& layers,
                                   [[maybe_unused]] const Codec& codec, std::size_t page_bytes) {
    if constexpr (requires { layers.layout; }) {
        if (limit.bytes == 0) // layers::grouped::check
            return 0;
        if (!layers.paged()) {
            std::size_t all = page_bytes;
            for (const std::size_t bytes : block_bytes_of(layers, codec))
                all += bytes / 16;
            page_bytes = all;
        }
    }
    return limit.pages_of(page_bytes);
}

// Opens the pages of a cache, and the blocks of its layer groups, within its limit. Requires: that is at least one
// page.
template <class Pages, class Policies, class Codec>
[[nodiscard]] Pages open_pages(const cache_config& config, const Policies& policies, const Codec& codec,
                               const page_shape& shape, const identity& id) {
    pool_config of{.shape = shape,
                   .pages = pages_in(config.limit, policies.layers, policies.codec, codec.page_bytes()),
                   .page_bytes = codec.page_bytes(),
                   .tenants = config.tenants == 0 ? 0 : config.tenants + 1,
                   .merge_equal_pages = config.merge_equal_pages,
                   .fair_tenants = config.fair_tenants};
    require(of.pages > 0, "a cache's limit is at least one page");
    if constexpr (Pages::grouped) {
        of.bytes = config.limit.bytes;
        const auto block_bytes = block_bytes_of(policies.layers, policies.codec);
        auto blocks = policies.layers.open({.pages = of.pages, .bytes = of.bytes, .block_bytes = block_bytes});
        of.blocks = blocks.slots() - of.pages;
        return Pages(of, id, policies, std::move(blocks));
    } else {
        return Pages(of, id, policies);
    }
}

}}} // namespace kvcache::detail
