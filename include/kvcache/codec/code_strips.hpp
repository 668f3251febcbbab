// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/page_side.hpp>
#include <kvcache/kernel/code_bytes.hpp>

#include <cstddef>
#include <cstdint>

namespace kvcache::detail {

/// Codes of `Bits` bits for one tile, in strips of 16: for keys the 16 tokens of a number of head_dim, for values 16
/// neighbours of a row. Strips that share 16 bytes lie in ascending bits; of 3-bit codes the lower two come first, then
/// the upper ones of all:
///
///     8 bits: strip s in bytes 16 s           4 bits: in bytes 16 (s / 2), from bit 4 (s % 2) on
///     2 bits: in bytes 16 (s / 4), from bit 2 (s % 4) on     1 bit: in bytes 16 (s / 8), bit s % 8
template <unsigned Bits>
class code_strips {
    static_assert(Bits == 2 || Bits == 3 || Bits == 4 || Bits == 8, "codes have 2, 3, 4 or 8 bits");

public:
    static constexpr unsigned lower = Bits == 3 ? 2 : Bits; ///< Bits of the first part.

    code_strips(page_side side, std::size_t head_dim) noexcept
        : side_(side),
          columns_(value_width(head_dim) / 16),
          strips_(side == page_side::keys ? head_dim : value_width(head_dim)) {}

    [[nodiscard]] std::size_t strips() const noexcept { return strips_; }
    /// The strips that a row of values has.
    [[nodiscard]] std::size_t columns() const noexcept { return columns_; }

    [[nodiscard]] std::size_t bytes() const noexcept {
        return Bits == 3 ? part_bytes(2) + part_bytes(1) : part_bytes(Bits);
    }

    /// Writes the code of number `d` of row `lane`. Requires: the bytes are zero where nothing was written.
    void put(std::byte* to, std::size_t d, std::size_t lane, std::uint8_t code) const noexcept {
        const bool keys = side_ == page_side::keys;
        const std::size_t strip = keys ? d : lane * columns_ + d / 16, place = keys ? lane : d % 16;
        put_part<lower>(to, strip, place, code);
        if constexpr (Bits == 3)
            put_part<1>(to + part_bytes(2), strip, place, static_cast<std::uint8_t>(code >> 2));
    }

    [[nodiscard]] code_bytes get(const std::byte* from, std::size_t strip) const noexcept {
        if constexpr (Bits == 8)
            return code_bytes::load(from + 16 * strip);
        else if constexpr (Bits == 3)
            return get_part<2>(from, strip).below(get_part<1>(from + part_bytes(2), strip), 2);
        else
            return get_part<Bits>(from, strip);
    }

private:
    [[nodiscard]] std::size_t part_bytes(std::size_t bits) const noexcept { return (strips_ * bits + 7) / 8 * 16; }

    template <unsigned Part>
    static void put_part(std::byte* to, std::size_t strip, std::size_t place, std::uint8_t code) noexcept {
        constexpr std::size_t shared = 8 / Part;
        const auto field = static_cast<std::uint8_t>(code & ((1u << Part) - 1));
        to[strip / shared * 16 + place] |= static_cast<std::byte>(field << (strip % shared * Part));
    }

    template <unsigned Part>
    [[nodiscard]] static code_bytes get_part(const std::byte* from, std::size_t strip) noexcept {
        constexpr std::size_t shared = 8 / Part;
        return code_bytes::load(from + strip / shared * 16)
            .template field<Part>(static_cast<unsigned>(strip % shared * Part));
    }

    page_side side_;
    std::size_t columns_;
    std::size_t strips_;
};

/// The nearest whole number between two, of two as near the even one; `low` for a NaN.
[[nodiscard]] inline f32x16 rounded(const f32x16& x, float low, float high) noexcept {
    const f32x16 magic = f32x16::broadcast(12582912.0f); // 1.5 * 2^23: what is added to it loses its fraction
    return min(max(x, f32x16::broadcast(low)), f32x16::broadcast(high)) + magic - magic;
}

} // namespace kvcache::detail
