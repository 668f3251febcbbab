// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/page_side.hpp>
#include <kvcache/kernel/code_dot.hpp>

#include <cstddef>
#include <cstdint>

namespace kvcache::inline KVCACHE_ABI::detail {

/// Codes of `Bits` bits for one tile, in fours for dot products: of keys four neighbours of head_dim, for 16 tokens; of
/// values four tokens, for 16 neighbours of head_dim.
///
///     keys:    four d / 4                   of row token     its number d % 4
///     values:  four d / 16 * 4 + token / 4  of row d % 16    its number token % 4
///
/// A four is 64 bytes, row by row. Of 4 and 2 bits the fours 0 and 1, or 0 to 3, share 64 bytes, in ascending bits; of
/// 3 bits the lower two lie like 2 bits, and behind all of them the upper ones, eight fours in 64 bytes.
template <unsigned Bits>
class packed_codes {
    static_assert(Bits == 2 || Bits == 3 || Bits == 4 || Bits == 8, "codes have 2, 3, 4 or 8 bits");
    using quads = code_quads<Bits>;

public:
    packed_codes(page_side side, std::size_t head_dim) noexcept
        : side_(side), quads_(side == page_side::keys ? (head_dim + 3) / 4 : value_width(head_dim) / 4) {}

    [[nodiscard]] std::size_t bytes() const noexcept { return lower() + (Bits == 3 ? (quads_ + 7) / 8 * 64 : 0); }

    /// Where the fours lie in a tile's bytes.
    [[nodiscard]] quads view(const std::byte* from, const std::int8_t* table) const noexcept {
        return {from, from + lower(), table};
    }

    /// Writes the code of number `d` of token `lane`. Requires: the bytes are zero where nothing was written.
    void put(std::byte* to, std::size_t d, std::size_t lane, std::uint8_t code) const noexcept {
        const bool keys = side_ == page_side::keys;
        const std::size_t quad = keys ? d / 4 : d / 16 * 4 + lane / 4;
        const std::size_t byte = keys ? lane * 4 + d % 4 : d % 16 * 4 + lane % 4;
        const unsigned field = code & ((1u << quads::part) - 1);
        to[quad / quads::per * 64 + byte] |= static_cast<std::byte>(field << quad % quads::per * quads::part);
        if constexpr (Bits == 3)
            to[lower() + quad / 8 * 64 + byte] |= static_cast<std::byte>((code >> 2 & 1u) << quad % 8);
    }

private:
    [[nodiscard]] std::size_t lower() const noexcept { return (quads_ + quads::per - 1) / quads::per * 64; }

    page_side side_;
    std::size_t quads_;
};

/// The nearest whole number between two, of two as near the even one; `low` for a NaN.
[[nodiscard]] inline f32x16 rounded(const f32x16& x, float low, float high) noexcept {
    const f32x16 magic = f32x16::broadcast(12582912.0f); // 1.5 * 2^23: what is added to it loses its fraction
    return min(max(x, f32x16::broadcast(low)), f32x16::broadcast(high)) + magic - magic;
}

} // namespace kvcache::detail
