// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The kinds of records.
enum class record_kind : std::uint32_t {
    page = 1,     ///< One full page of a chain.
    sequence = 2, ///< A whole sequence, from its first token.
};

/// The kinds of parts of a record.
enum class part_kind : std::uint32_t {
    page = 1,             ///< A page as its codec keeps it; rows after those in use are zero.
    exact = 2,            ///< The exact rows of that page, as the plain codec keeps them.
    generation_state = 3, ///< How an answer was being said (session/snapshot.hpp).
};

/// The offsets of a record's fields (docs/format.md). A record has exactly one valid form. Every offset follows from
/// the counts, but is stored too, so that a reader can find a part without computing the layout.
namespace record_layout {

/// The first bytes of every record.
inline constexpr std::array<unsigned char, 8> magic = {0x89, 'k', 'v', 'c', 0x0d, 0x0a, 0x1a, 0x0a};

inline constexpr std::size_t alignment = 64;    ///< Alignment of the payload and of every part.
inline constexpr std::size_t fixed_bytes = 256; ///< Size of the fields below; the table of the parts follows.
inline constexpr std::size_t part_bytes = 64;   ///< Size of an entry in the table of the parts.

/// Offsets in the header, in bytes.
/// @{
inline constexpr std::size_t format = 8, kind = 12, seal = 16, parts = 20, header_bytes = 24, total_bytes = 32,
                             first_token = 40, tokens = 48, tokens_offset = 56, identity_offset = 64,
                             identity_bytes = 72, parts_offset = 80, reserved = 88, identity = 96, before = 128,
                             name = 160, more_reserved = 192, checksum = 224;
/// @}

/// Offsets in an entry of the table of the parts, in bytes.
/// @{
inline constexpr std::size_t part_kind = 0, part_index = 4, part_offset = 8, part_size = 16, part_rows = 24,
                             part_reserved = 28, part_checksum = 32;
/// @}

/// Returns n rounded up to the alignment.
[[nodiscard]] constexpr std::uint64_t aligned(std::uint64_t n) noexcept {
    return (n + alignment - 1) / alignment * alignment;
}

} // namespace record_layout

}} // namespace kvcache
