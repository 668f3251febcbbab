// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/any_cache.hpp>
#include <kvcache/codec/all.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

template <class P>
using if_page_codec = std::conditional_t<page_writer<opened_by<P, page_shape>>, std::tuple<P>, std::tuple<>>;

template <class List>
struct page_codecs_of;
template <class... Ps>
struct page_codecs_of<std::tuple<Ps...>> {
    using type = decltype(std::tuple_cat(std::declval<if_page_codec<Ps>>()...));
};

} // namespace detail

/// Every codec of the library that encodes whole pages.
using page_codecs = detail::page_codecs_of<codec_policies>::type;

namespace detail {

template <class List>
struct any_codec_state : opened_choice<List, page_shape> {
    using role = codec_role;
    static constexpr const char* role_name = "codec";
    using opened_choice<List, page_shape>::opened_choice;

    [[nodiscard]] std::size_t page_bytes() const {
        return this->visit([](const auto& one) -> std::size_t { return one.page_bytes(); });
    }
    [[nodiscard]] std::string name() const {
        return this->visit([](const auto& one) -> std::string { return one.name(); });
    }
    [[nodiscard]] page_shape shape() const {
        return this->visit([](const auto& one) -> page_shape { return one.shape(); });
    }
    [[nodiscard]] residual_window window() const {
        return this->visit([](const auto& one) -> residual_window { return one.window(); });
    }
    void transform_key(std::span<float> row) const {
        this->visit([&](const auto& one) { one.transform_key(row); });
    }
    void transform_value(std::span<float> row) const {
        this->visit([&](const auto& one) { one.transform_value(row); });
    }
    void inverse_transform(std::span<float> row) const {
        this->visit([&](const auto& one) { one.inverse_transform(row); });
    }
    void encode(std::span<std::byte> page, layer_id layer, head_id head, std::span<const std::byte> rows) const {
        this->visit([&](const auto& one) { one.encode(page, layer, head, rows); });
    }
    [[nodiscard]] codec::quantized_tile codes(std::span<const std::byte> page, page_tile at) const {
        return this->visit([&](const auto& one) -> codec::quantized_tile {
            if constexpr (requires { one.codes(page, at); })
                return one.codes(page, at);
            else
                return {};
        });
    }
    [[nodiscard]] const float* keys(std::span<const std::byte> page, page_tile at, std::span<float> scratch) const {
        return this->visit([&](const auto& one) -> const float* { return one.keys(page, at, scratch); });
    }
    [[nodiscard]] const float* values(std::span<const std::byte> page, page_tile at, std::span<float> scratch) const {
        return this->visit([&](const auto& one) -> const float* { return one.values(page, at, scratch); });
    }
};

} // namespace detail

/// A codec of whole pages that is chosen by its name at run time, so that a cache, its model and its attention are
/// compiled once for all codecs. Each tile costs one indirect jump.
template <class List = page_codecs>
using any_codec = any_policy<List, detail::any_codec_state>;

static_assert(codec_policy<any_codec<>>);

}} // namespace kvcache
