// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/f32.hpp>
#include <kvcache/codec/side_coder.hpp>
#include <kvcache/core/errors.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace codec {

/// State of a codec that quantizes whole pages, keys and values each with a coder of its own. For each layer and head
/// come the keys, unit after unit of rows, then the values:
///
///     layer, head:  [ keys: (tokens / unit, bytes of a unit) ][ values: (tokens / unit, bytes of a unit) ]
template <side_coder Keys, side_coder Values>
class quantized_pages {
public:
    quantized_pages(page_shape shape, Keys keys, Values values, residual_window exact = {})
        : shape_(shape),
          keys_(std::move(keys)),
          values_(std::move(values)),
          key_bytes_(shape.tokens / keys_.tokens() * keys_.bytes()),
          value_bytes_(shape.tokens / values_.tokens() * values_.bytes()),
          rows_(shape),
          window_(exact) {
        require(shape.tokens % keys_.tokens() == 0 && shape.tokens % values_.tokens() == 0,
                "a page holds whole groups of the tokens that are coded together");
    }

    [[nodiscard]] std::size_t page_bytes() const noexcept {
        return std::size_t{shape_.layers} * shape_.kv_heads * (key_bytes_ + value_bytes_);
    }
    [[nodiscard]] std::string name() const {
        std::string both = keys_.name();
        if (values_.name() != both)
            both = "keys " + both + ", values " + values_.name();
        if (window_.first > 0)
            both += ", first " + std::to_string(window_.first) + " pages exact";
        if (window_.recent > 0)
            both += ", last " + std::to_string(window_.recent) + " pages exact";
        return both;
    }
    [[nodiscard]] page_shape shape() const noexcept { return shape_; }
    [[nodiscard]] residual_window window() const noexcept { return window_; }

    /// Returns a copy that also keeps the pages of the first `tokens` tokens in full precision.
    [[nodiscard]] quantized_pages with_first(std::size_t tokens) const {
        return {shape_, keys_, values_, {(tokens + shape_.tokens - 1) / shape_.tokens, window_.recent}};
    }
    /// Returns a copy that also keeps the last `pages` pages before a query's own in full precision.
    [[nodiscard]] quantized_pages with_recent(std::size_t pages) const {
        return {shape_, keys_, values_, {window_.first, pages}};
    }

    void transform_key(std::span<float> row) const noexcept { keys_.transform(row); }
    void transform_value(std::span<float> row) const noexcept { values_.transform(row); }
    void inverse_transform(std::span<float> row) const noexcept { values_.inverse_transform(row); }
    /// Inverse of `transform_key`, up to rounding.
    void inverse_transform_key(std::span<float> row) const noexcept { keys_.inverse_transform(row); }

    /// Encodes one head of a layer. `rows`: the page in the layout of the f32 codec, its rows transformed.
    void encode(std::span<std::byte> page, layer_id layer, head_id head, std::span<const std::byte> rows) const {
        std::byte* to = page.data() + offset(layer, head);
        for (std::size_t row = 0; row < shape_.tokens; row += keys_.tokens(), to += keys_.bytes())
            keys_.encode(rows_.keys(rows, tile_of(layer, head, row), {}), to);
        for (std::size_t row = 0; row < shape_.tokens; row += values_.tokens(), to += values_.bytes())
            values_.encode(rows_.values(rows, tile_of(layer, head, row), {}), to);
    }

    /// Returns the quantized operands of a tile; the format is `none` where attention cannot read it undecoded.
    [[nodiscard]] quantized_tile codes(std::span<const std::byte> page, page_tile at) const noexcept {
        const std::byte* const from = page.data() + offset(at.layer, at.head);
        return {codes_of(keys_, from, at.tile), codes_of(values_, from + key_bytes_, at.tile)};
    }

    [[nodiscard]] const float* keys(std::span<const std::byte> page, page_tile at, std::span<float> scratch) const {
        const std::size_t tiles = keys_.tokens() / tile_tokens;
        keys_.decode(page.data() + offset(at.layer, at.head) + at.tile / tiles * keys_.bytes(), at.tile % tiles,
                     scratch.data());
        return scratch.data();
    }
    [[nodiscard]] const float* values(std::span<const std::byte> page, page_tile at, std::span<float> scratch) const {
        const std::size_t tiles = values_.tokens() / tile_tokens;
        values_.decode(page.data() + offset(at.layer, at.head) + key_bytes_ + at.tile / tiles * values_.bytes(),
                       at.tile % tiles, scratch.data());
        return scratch.data();
    }

private:
    template <class Coder>
    [[nodiscard]] static quantized_operand codes_of(const Coder& coder, const std::byte* from,
                                                    std::size_t tile) noexcept {
        if constexpr (requires { coder.codes(from, tile); }) {
            const std::size_t tiles = coder.tokens() / tile_tokens;
            return coder.codes(from + tile / tiles * coder.bytes(), tile % tiles);
        } else {
            return {};
        }
    }

    [[nodiscard]] std::size_t offset(layer_id layer, head_id head) const noexcept {
        return (std::size_t{index_of(layer)} * shape_.kv_heads + index_of(head)) * (key_bytes_ + value_bytes_);
    }
    [[nodiscard]] static page_tile tile_of(layer_id layer, head_id head, std::size_t row) noexcept {
        return {layer, head, static_cast<std::uint32_t>(row / tile_tokens)};
    }

    page_shape shape_;
    Keys keys_;
    Values values_;
    std::size_t key_bytes_; // for one head of a layer
    std::size_t value_bytes_;
    f32::state rows_; // layout of the rows to encode
    residual_window window_;
};

namespace detail {

/// Opens the state of a codec with a coder for keys and one for values.
template <sided_codec Keys, sided_codec Values>
[[nodiscard]] auto open_sides(Keys keys, Values values, page_shape shape) {
    return quantized_pages(shape, keys.coder(kv_kind::keys, shape), values.coder(kv_kind::values, shape));
}

} // namespace detail

}}} // namespace kvcache::codec
