// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/any_kv_codec.hpp>
#include <kvcache/codec/f32.hpp>
#include <kvcache/codec/residual_page.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/shape.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

namespace support {

/// The names of codecs that a command line takes, separated by commas.
[[nodiscard]] inline std::string codec_names() {
    std::string all;
    for (const std::string& one : kvcache::any_side_codec<>::names())
        all += (all.empty() ? "" : ", ") + one;
    return all;
}

/// Parses the value of `--codec`: NAME for keys and values, or k=NAME,v=NAME in any order, where a side that is not
/// named is float32. Errors: malformed; not_found, with the names that there are.
[[nodiscard]] inline kvcache::result<kvcache::any_kv_codec> read_codec(std::string_view text) {
    using side = kvcache::any_side_codec<>;
    if (text.find('=') == text.npos) {
        const auto both = side::named(text);
        if (!both)
            return both.error();
        return kvcache::any_kv_codec{*both, *both};
    }
    std::optional<side> keys, values;
    for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t end = std::min(text.find(',', begin), text.size());
        const std::string_view one = text.substr(begin, end - begin);
        std::optional<side>* const to = one.starts_with("k=") ? &keys : one.starts_with("v=") ? &values : nullptr;
        if (to == nullptr || *to)
            return kvcache::error{kvcache::error_code::malformed, "codec",
                                  "a codec is NAME, or k=NAME,v=NAME; \"" + std::string(text) + "\" is neither"};
        const auto made = side::named(one.substr(2));
        if (!made)
            return made.error();
        *to = *made;
        begin = end + 1;
    }
    return kvcache::any_kv_codec{keys.value_or(side{}), values.value_or(side{})};
}

/// Checks that a page of this shape holds whole groups of the tokens that are coded together. Errors: out_of_range.
[[nodiscard]] inline kvcache::result<void> check_page(const kvcache::any_kv_codec& codec, kvcache::page_shape shape) {
    for (const auto side : {kvcache::codec::kv_kind::keys, kvcache::codec::kv_kind::values}) {
        const auto& one = side == kvcache::codec::kv_kind::keys ? codec.keys : codec.values;
        if (const std::size_t group = one.coder(side, shape).tokens(); shape.tokens % group != 0)
            return kvcache::error{kvcache::error_code::out_of_range, "--page",
                                  "--page: " + one.name() + " takes a multiple of " + std::to_string(group) +
                                      " tokens, not " + std::to_string(shape.tokens)};
    }
    return {};
}

/// Runs `use(codec)` with the codec that the text names, over pages of a shape, and returns its result: codec::f32, or
/// kvcache::any_kv_codec for every other. Errors: those of read_codec and check_page go to `on_error`.
template <class Use, class OnError>
int with_codec(std::string_view text, kvcache::page_shape shape, Use use, OnError on_error) {
    const auto read = read_codec(text);
    if (!read)
        return on_error(read.error());
    if (read->keys == kvcache::any_side_codec<>{} && read->values == read->keys)
        return use(kvcache::codec::f32{});
    if (const auto fits = check_page(*read, shape); !fits)
        return on_error(fits.error());
    return use(*read);
}

/// Bytes of the full-precision rows of a sequence's last page, and of the pages that a forward pass of `rows` fills:
/// none with float32 pages.
template <class Codec>
[[nodiscard]] std::size_t residual_bytes(const Codec&, kvcache::page_shape shape, std::size_t rows) {
    if constexpr (kvcache::page_writer<kvcache::opened_by<Codec, kvcache::page_shape>>)
        return (rows / shape.tokens + 6) * kvcache::codec::residual_page::bytes_for(shape);
    else
        return 0;
}

/// Checks the value of an option with read_codec.
[[nodiscard]] inline CLI::Validator codec_validator() {
    return {[](std::string& value) {
                const auto read = read_codec(value);
                return read ? std::string() : read.error().message;
            },
            "CODEC"};
}

/// Adds the option `--codec`, whose value is stored in `text`.
inline CLI::Option* add_codec_flag(CLI::App& app, std::string& text) {
    return app
        .add_option("--codec", text,
                    "How pages store keys and values: NAME, or k=NAME,v=NAME; the names are " + codec_names())
        ->check(codec_validator())
        ->capture_default_str();
}

} // namespace support
