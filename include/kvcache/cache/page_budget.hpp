// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/config.hpp>
#include <kvcache/cache/page_index.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/core/role.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/layers/concept.hpp>
#include <kvcache/storage/concept.hpp>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

template <class Storage, class Codec>
class owned_blocks; // <kvcache/layer_groups.hpp>

namespace detail {

// The shape of a cache's pages: for layer groups that of the first full one.
template <class Layers>
[[nodiscard]] page_shape shape_of(const page_shape& given, [[maybe_unused]] const Layers& layers) {
    if constexpr (requires { layers.page_shape(); })
        return layers.page_shape();
    else
        return given;
}

// A storage that gives the memory of freed pages back, if it or the one that it wraps has a choice.
template <class Storage>
[[nodiscard]] Storage returning(Storage storage) {
    if constexpr (requires { storage.keep = false; })
        storage.keep = false;
    if constexpr (requires { storage.inner; })
        storage.inner = returning(storage.inner);
    return storage;
}

// The codec of the blocks of layer groups.
template <class Codec>
[[nodiscard]] const auto& blocks_codec(const Codec& codec) noexcept {
    if constexpr (requires { codec.blocks; })
        return codec.blocks;
    else
        return codec;
}

// Opens what a cache keeps of layer groups: blocks of its own, unless its pages are the host's. The memory of freed
// blocks goes back, where the storage can do so: pages and blocks share one limit.
template <class Policies>
[[nodiscard]] auto open_layers(const Policies& policies, const layers_capacity& of) {
    using storage_policy_type = decltype(policies.storage);
    if constexpr (requires { policies.layers.layout; } &&
                  host_storage_state<opened_by<storage_policy_type, std::size_t, std::size_t>>)
        return policies.layers.open(of, owned_blocks(returning(policies.storage), blocks_codec(policies.codec)));
    else
        return policies.layers.open(of);
}

// Whether the codec of blocks in the cache's memory writes single rows, or opaque blobs.
template <class Layers>
inline constexpr bool writes_blocks_by_row = true;
template <class Layers>
    requires requires {
        typename Layers::memory_type::codec_type;
    }
inline constexpr bool writes_blocks_by_row<Layers> = row_writer<typename Layers::memory_type::codec_type> ||
                                                     opaque_codec_state<typename Layers::memory_type::codec_type>;

// Whether a cache of layer groups can be opened. Errors: those of layers::grouped; out_of_range, for a group whose
// blocks its codec cannot have.
template <class Core, class Layers>
[[nodiscard]] result<void> check_layers(const Layers& layers, const cache_limits& limit) {
    using blocks = typename Core::layers_type;
    if (auto right = layers.check(limit, blocks::owned); !right)
        return right;
    for (std::size_t group = 0; group < layers.layout.groups.size(); ++group)
        if constexpr (blocks::owned)
            if (layers.layout.groups[group].has_rows() && group != layers.paged() &&
                !has_pages_of<typename blocks::memory_type::codec_type>(layers.layout.shape(group)))
                return error{error_code::out_of_range, joined({"groups[", std::to_string(group), "]"}),
                             shape_rule<typename blocks::memory_type::codec_type>};
    return {};
}

// By group: the bytes of a block.
template <class Layers, class Codec>
[[nodiscard]] std::vector<std::size_t> block_bytes_of(const Layers& layers, const Codec& codec) {
    std::vector<std::size_t> bytes;
    for (std::size_t group = 0; group < layers.layout.groups.size(); ++group) {
        const auto& of = layers.layout.groups[group];
        const std::size_t own = group < layers.block_bytes.size() ? layers.block_bytes[group] : 0;
        bytes.push_back(own > 0         ? own
                        : of.has_rows() ? blocks_codec(codec).open(layers.layout.shape(group)).page_bytes()
                                        : of.state_bytes);
    }
    return bytes;
}

// The number of pages within a limit. Pages without a full group hold nothing; there are sixteen for each block. An
// opaque state counts as 64 KiB for this.
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
            for (const auto& group : layers.layout.groups)
                all += group.opaque ? 4096 : 0;
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
        const auto sizes = block_bytes_of(policies.layers, policies.codec);
        auto blocks = open_layers(policies, {.pages = of.pages, .bytes = of.bytes, .block_bytes = sizes});
        of.blocks = blocks.slots() - of.pages;
        Policies shared = policies;
        shared.storage = returning(policies.storage);
        return Pages(of, id, shared, std::move(blocks));
    } else {
        return Pages(of, id, policies);
    }
}

} // namespace detail

}} // namespace kvcache
