// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/compose.hpp>
#include <kvcache/codec/by_group.hpp>
#include <kvcache/codec/f32.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/layout.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/index/chunk.hpp>
#include <kvcache/layer_groups.hpp>
#include <kvcache/model/transformer.hpp>
#include <kvcache/session/reuse_mode.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "codec_flag.hpp"

namespace support {

/// Policies of a cache that keeps every token in every layer, in pages of a codec. It can reuse chunks.
template <class Codec>
struct alike_layers {
    Codec codec;

    [[nodiscard]] auto policies() const { return std::tuple(codec, kvcache::index::chunk{}); }
    /// Bytes of what is not in pages and stays cached for `rows` tokens.
    [[nodiscard]] std::size_t other_bytes(std::size_t) const { return 0; }
    /// Bytes of what is not in pages and a sequence holds while it runs `rows` rows.
    [[nodiscard]] std::size_t held_bytes(std::size_t) const { return 0; }
};

/// Policies of a cache of a model's layer groups: pages of a codec for full attention, float32 for windows, and states.
template <class Codec>
struct grouped_layers {
    Codec codec;
    kvcache::cache_layout layout;

    [[nodiscard]] auto policies() const {
        return std::tuple(kvcache::codec::by_group{codec, kvcache::codec::f32{}},
                          kvcache::layers::grouped{.layout = layout});
    }
    /// A block of each window for each page, and a snapshot of each state where a prompt ends, before its end, where it
    /// parts from another, and each four pages of an answer.
    [[nodiscard]] std::size_t other_bytes(std::size_t rows) const {
        const std::size_t pages = rows / layout.tokens + 4;
        return bytes([&](const kvcache::layer_group&) { return pages; }, pages / 4 + 8);
    }
    /// The blocks of windows and of the rows, and four states: after the last token, after the rows, and two snapshots.
    [[nodiscard]] std::size_t held_bytes(std::size_t rows) const {
        return bytes([&](const kvcache::layer_group& of) { return (rows + of.window) / layout.tokens + 3; }, 4);
    }

private:
    // Bytes of so many blocks of each window group, and of so many states.
    template <class Blocks>
    [[nodiscard]] std::size_t bytes(const Blocks& blocks, std::size_t states) const {
        std::size_t all = 0;
        for (const kvcache::layer_group& of : layout.groups) {
            all += states * of.state_bytes;
            if (of.window > 0)
                all += blocks(of) * layout.tokens * 2 * of.layers * of.kv_heads * of.head_dim * sizeof(float);
        }
        return all;
    }
};

/// The cache that such policies make, with `More` policies.
template <class Layers, class... More>
[[nodiscard]] auto make_cache_of(const Layers& layers, const kvcache::cache_config& config, const More&... more) {
    return std::apply([&](const auto&... each) { return kvcache::make_cache(config, each..., more...); },
                      layers.policies());
}
template <class Layers, class... More>
using cache_of = decltype(make_cache_of(std::declval<const Layers&>(), {}, std::declval<const More&>()...));

/// Runs `use(layers)` with what a model's cache keeps and returns its result: layer groups where layers keep different
/// things, but not if chunks are reused, so that a tier keeps them too. `codec` is the name of a codec. Errors:
/// unsupported for a model whose layers need groups and that does not reuse prefixes; those of read_codec and
/// check_page.
template <class Use, class OnError>
int with_layers(const kvcache::transformer& model, std::uint32_t page, std::string_view codec, kvcache::reuse_mode mode,
                Use use, OnError on_error) {
    const kvcache::page_shape shape = model.shape(page);
    const kvcache::cache_layout layout = model.layout(page);
    const bool prefixes = mode == kvcache::reuse_mode::prefix;
    if (model.config().needs_groups() && !prefixes)
        return on_error({kvcache::error_code::unsupported, "--mode",
                         model.state_group() ? "--mode: a model with recurrent layers has a state of all tokens "
                                               "before, so it reuses prefixes alone"
                                             : "--mode: the model's layers keep different keys and values, so its "
                                               "prefixes alone are reused"});
    return with_codec(
        codec, shape,
        [&](const auto& pages) {
            using codec_type = std::decay_t<decltype(pages)>;
            return layout.groups.size() == 1 || !prefixes ? use(alike_layers<codec_type>{pages})
                                                          : use(grouped_layers<codec_type>{pages, layout});
        },
        on_error);
}

} // namespace support
