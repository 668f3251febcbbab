// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/page_side.hpp>
#include <kvcache/kernel/number_format.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <type_traits>

namespace kvcache::inline KVCACHE_ABI::detail {

/// Keeps each number of a tile in 16 bits, in the tile's own order: keys (head_dim, 16), values (16, value_width).
template <class Number>
class wide_coder {
public:
    wide_coder(page_side side, std::size_t head_dim) : numbers_(tile_numbers(side, head_dim)) {}

    [[nodiscard]] std::size_t tokens() const noexcept { return tile_tokens; }
    [[nodiscard]] std::size_t bytes() const noexcept { return numbers_ * sizeof(Number); }
    [[nodiscard]] std::string name() const { return std::is_same_v<Number, half> ? "f16" : "bf16"; }
    void turn(std::span<float>) const noexcept {}
    void turn_back(std::span<float>) const noexcept {}

    void encode(const float* from, std::byte* to) const noexcept {
        auto* const numbers = reinterpret_cast<Number*>(to);
        for (std::size_t i = 0; i < numbers_; ++i)
            if constexpr (std::is_same_v<Number, half>)
                numbers[i] = to_half(from[i]);
            else
                numbers[i] = to_bfloat16(from[i]);
    }

    void decode(const std::byte* from, std::size_t, float* to) const noexcept {
        const auto* const numbers = reinterpret_cast<const Number*>(from);
        for (std::size_t i = 0; i < numbers_; i += 16)
            f32x16::load(numbers + i).store(to + i);
    }

    /// Where the tile's numbers lie.
    [[nodiscard]] side_codes codes(const std::byte* from, std::size_t) const noexcept {
        return {.format = std::is_same_v<Number, half> ? code_format::f16 : code_format::bf16,
                .codes = from,
                .bytes = bytes()};
    }

private:
    std::size_t numbers_;
};

} // namespace kvcache::detail
