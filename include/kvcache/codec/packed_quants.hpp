// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/kv_kind.hpp>
#include <kvcache/kernel/code_dot.hpp>

#include <cstddef>
#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI { namespace codec::detail {

/// Codes of `Bits` bits for one tile, in groups of four (quads) for dot products. A quad of keys is four adjacent
/// elements of head_dim for 16 tokens; a quad of values is four tokens for 16 adjacent elements of head_dim.
///
///     keys:    quad d / 4                    row token     element d % 4
///     values:  quad d / 16 * 4 + token / 4   row d % 16    element token % 4
///
/// With 8 bits a quad is 64 bytes, row by row. With 4 or 2 bits, 2 or 4 consecutive quads share 64 bytes, in ascending
/// bits. With 3 bits the lower two bits are stored as with 2 bits; the upper bits follow after all of them, 8 quads in
/// 64 bytes.
template <unsigned Bits>
class packed_quants {
    static_assert(Bits == 2 || Bits == 3 || Bits == 4 || Bits == 8, "codes have 2, 3, 4 or 8 bits");
    using quads = kvcache::detail::code_quads<Bits>;

public:
    packed_quants(kv_kind side, std::size_t head_dim) noexcept
        : side_(side), quads_(side == kv_kind::keys ? (head_dim + 3) / 4 : padded_head_dim(head_dim) / 4) {}

    [[nodiscard]] std::size_t bytes() const noexcept { return lower() + (Bits == 3 ? (quads_ + 7) / 8 * 64 : 0); }

    /// Returns the view of the quads in a tile's bytes.
    [[nodiscard]] quads view(const std::byte* from, const std::int8_t* table) const noexcept {
        return {from, from + lower(), table};
    }

    /// Writes the code of element `d` of token `lane`. Requires: bytes not yet written are zero.
    void put(std::byte* to, std::size_t d, std::size_t lane, std::uint8_t code) const noexcept {
        const bool keys = side_ == kv_kind::keys;
        const std::size_t quad = keys ? d / 4 : d / 16 * 4 + lane / 4;
        const std::size_t byte = keys ? lane * 4 + d % 4 : d % 16 * 4 + lane % 4;
        const unsigned field = code & ((1u << quads::part) - 1);
        to[quad / quads::per * 64 + byte] |= static_cast<std::byte>(field << quad % quads::per * quads::part);
        if constexpr (Bits == 3)
            to[lower() + quad / 8 * 64 + byte] |= static_cast<std::byte>((code >> 2 & 1u) << quad % 8);
    }

private:
    [[nodiscard]] std::size_t lower() const noexcept { return (quads_ + quads::per - 1) / quads::per * 64; }

    kv_kind side_;
    std::size_t quads_;
};

/// Rounds to the nearest integer, ties to even, and clamps to [low, high]; a NaN gives `low`.
[[nodiscard]] inline f32x16 rounded(const f32x16& x, float low, float high) noexcept {
    const f32x16 magic = f32x16::broadcast(12582912.0f); // 1.5 * 2^23: adding it rounds away the fraction
    return min(max(x, f32x16::broadcast(low)), f32x16::broadcast(high)) + magic - magic;
}

}}} // namespace kvcache::codec::detail
