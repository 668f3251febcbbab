// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/quantized_pages.hpp>
#include <kvcache/codec/side_coder.hpp>
#include <kvcache/core/number_format.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <type_traits>

namespace kvcache { inline namespace KVCACHE_ABI { namespace codec {

namespace detail {

/// Coder of a tile in floats of 16 or 32 bits, in the tile's own order: keys (head_dim, 16), values (16,
/// padded_head_dim).
template <weight_format Number>
class float_coder {
public:
    float_coder(kv_kind side, std::size_t head_dim) : numbers_(tile_numbers(side, head_dim)) {}

    [[nodiscard]] std::size_t tokens() const noexcept { return tile_tokens; }
    [[nodiscard]] std::size_t bytes() const noexcept { return numbers_ * sizeof(Number); }
    [[nodiscard]] std::string name() const { return format_name<Number>; }
    void transform(std::span<float>) const noexcept {}
    void inverse_transform(std::span<float>) const noexcept {}

    void encode(const float* from, std::byte* to) const noexcept {
        auto* const numbers = reinterpret_cast<Number*>(to);
        for (std::size_t i = 0; i < numbers_; ++i)
            numbers[i] = narrow<Number>(from[i]);
    }

    void decode(const std::byte* from, std::size_t, float* to) const noexcept {
        const auto* const numbers = reinterpret_cast<const Number*>(from);
        for (std::size_t i = 0; i < numbers_; i += 16)
            f32x16::load(numbers + i).store(to + i);
    }

    /// Returns the operand that describes the encoded tile.
    [[nodiscard]] quantized_operand codes(const std::byte* from, std::size_t) const noexcept
        requires(!std::is_same_v<Number, float>) {
        return {.format = std::is_same_v<Number, half> ? quant_format::f16 : quant_format::bf16,
                .codes = from,
                .bytes = bytes()};
    }

private:
    std::size_t numbers_;
};

} // namespace detail

/// Stores keys and values as binary16: magnitudes from 6e-8 to 65504 with 11 significant bits. Larger magnitudes
/// saturate to 65504.
struct f16 {
    using role = codec_role;
    [[nodiscard]] auto coder(kv_kind side, page_shape shape) const {
        return detail::float_coder<half>(side, shape.head_dim);
    }
    [[nodiscard]] auto open(page_shape shape) const { return detail::open_sides(*this, *this, shape); }
};

static_assert(codec_policy<f16>);

/// Stores keys and values as bfloat16: the range of float32 with 8 significant bits. Larger magnitudes saturate to the
/// largest finite bfloat16.
struct bf16 {
    using role = codec_role;
    [[nodiscard]] auto coder(kv_kind side, page_shape shape) const {
        return detail::float_coder<bfloat16>(side, shape.head_dim);
    }
    [[nodiscard]] auto open(page_shape shape) const { return detail::open_sides(*this, *this, shape); }
};

static_assert(codec_policy<bf16>);

}}} // namespace kvcache::codec
