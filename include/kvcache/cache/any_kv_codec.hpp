// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/codebook.hpp>
#include <kvcache/codec/delta.hpp>
#include <kvcache/codec/float16.hpp>
#include <kvcache/codec/hadamard.hpp>
#include <kvcache/codec/int4.hpp>
#include <kvcache/codec/int4_per_channel.hpp>
#include <kvcache/codec/int8.hpp>
#include <kvcache/codec/mixed_kv.hpp>
#include <kvcache/codec/quantized_pages.hpp>
#include <kvcache/codec/side_coder.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/type_name.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

/// Float32 in whole pages, for one side of a page whose other side is quantized.
struct whole_f32 {
    using role = codec_role;
    [[nodiscard]] auto coder(codec::kv_kind side, page_shape shape) const {
        return codec::detail::float_coder<float>(side, shape.head_dim);
    }
    [[nodiscard]] auto open(page_shape shape) const { return codec::detail::open_sides(*this, *this, shape); }
};

/// One of several coders. Each call costs one indirect jump.
template <codec::side_coder... Coders>
class any_coder {
public:
    template <std::size_t I, class Coder>
    any_coder(std::in_place_index_t<I> place, Coder made) : one_(place, std::move(made)) {}

    [[nodiscard]] std::size_t tokens() const {
        return std::visit([](const auto& one) -> std::size_t { return one.tokens(); }, one_);
    }
    [[nodiscard]] std::size_t bytes() const {
        return std::visit([](const auto& one) -> std::size_t { return one.bytes(); }, one_);
    }
    [[nodiscard]] std::string name() const {
        return std::visit([](const auto& one) -> std::string { return one.name(); }, one_);
    }
    void encode(const float* from, std::byte* to) const {
        std::visit([&](const auto& one) { one.encode(from, to); }, one_);
    }
    void decode(const std::byte* from, std::size_t tile, float* to) const {
        std::visit([&](const auto& one) { one.decode(from, tile, to); }, one_);
    }
    void transform(std::span<float> row) const {
        std::visit([&](const auto& one) { one.transform(row); }, one_);
    }
    void inverse_transform(std::span<float> row) const {
        std::visit([&](const auto& one) { one.inverse_transform(row); }, one_);
    }
    [[nodiscard]] codec::quantized_operand codes(const std::byte* from, std::size_t tile) const {
        return std::visit(
            [&](const auto& one) -> codec::quantized_operand {
                if constexpr (requires { one.codes(from, tile); })
                    return one.codes(from, tile);
                else
                    return {};
            },
            one_);
    }

private:
    std::variant<Coders...> one_;
};

} // namespace detail

/// A list of codecs that have one coder for keys and one for values.
using side_codecs = std::tuple<detail::whole_f32, codec::bf16, codec::f16, codec::int8, codec::int8_grouped,
                               codec::int4, codec::int4_per_channel, codec::hadamard<codec::int8>,
                               codec::hadamard<codec::int4>, codec::codebook<5>, codec::codebook<4>, codec::codebook<3>,
                               codec::codebook<2>, codec::delta<4>, codec::delta<3>, codec::delta<2>>;

/// A codec for the keys or the values of pages that is chosen from a list by its name at run time, with its standard
/// options. A name is that of the type with `_` for `<`: "int8", "hadamard_int4", "codebook_3". The first of the
/// standard list is "f32".
template <class List = side_codecs>
class any_side_codec;

/// The same for a list that is spelled as a tuple.
template <codec::sided_codec... Ps>
class any_side_codec<std::tuple<Ps...>> {
public:
    using role = codec_role;

    any_side_codec() = default; ///< The first codec of the list.

    /// Errors: not_found, with the available names.
    [[nodiscard]] static result<any_side_codec> named(std::string_view name) {
        const std::vector<std::string> all = names();
        any_side_codec made;
        made.place_ = static_cast<std::size_t>(ranges::find(all, name) - all.begin());
        if (made.place_ < all.size())
            return made;
        std::string known;
        for (const std::string& one : all)
            known += (known.empty() ? "" : ", ") + one;
        return error{error_code::not_found, "codec",
                     "no codec is named \"" + std::string(name) + "\"; there are " + known};
    }
    /// The names of the list, in order.
    [[nodiscard]] static std::vector<std::string> names() { return {name_of<Ps>()...}; }
    [[nodiscard]] std::string name() const { return names()[place_]; }

    [[nodiscard]] auto coder(codec::kv_kind side, page_shape shape) const {
        return coder_at(side, shape, std::index_sequence_for<Ps...>{});
    }
    [[nodiscard]] auto open(page_shape shape) const { return codec::detail::open_sides(*this, *this, shape); }

    friend bool operator==(const any_side_codec&, const any_side_codec&) = default;

private:
    using any_coder = detail::any_coder<
        std::remove_cvref_t<decltype(std::declval<const Ps&>().coder(codec::kv_kind::keys, page_shape{}))>...>;

    template <class P>
    [[nodiscard]] static std::string name_of() {
        if constexpr (std::is_same_v<P, detail::whole_f32>)
            return "f32";
        std::string name = type_name<P>();
        std::replace(name.begin(), name.end(), '<', '_');
        std::erase(name, '>');
        return name;
    }
    template <std::size_t... I>
    [[nodiscard]] any_coder coder_at(codec::kv_kind side, page_shape shape, std::index_sequence<I...>) const {
        using maker = any_coder (*)(codec::kv_kind, page_shape);
        static constexpr maker makers[] = {[](codec::kv_kind of, page_shape with) {
            return any_coder(std::in_place_index<I>, Ps{}.coder(of, with));
        }...};
        return makers[place_](side, shape);
    }

    std::size_t place_ = 0;
};

/// A codec of whole pages whose keys and values are stored each by a codec that is chosen at run time. A cache, its
/// model and its attention are compiled once for all pairs. A page has the bytes and the identity of the same codec
/// chosen at compile time; each tile costs two indirect jumps.
using any_kv_codec = codec::mixed_kv<any_side_codec<>, any_side_codec<>>;

static_assert(codec_policy<any_kv_codec>);

}} // namespace kvcache
