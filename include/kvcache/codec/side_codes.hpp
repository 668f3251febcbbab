// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/kernel/number_format.hpp>

#include <cstddef>
#include <cstdint>

namespace kvcache::inline KVCACHE_ABI {

/// How the numbers of one side of a tile lie in its bytes, so that attention reads them without decoding the tile.
enum class code_format : std::uint8_t {
    none,     ///< In no way that attention knows: the tile is decoded.
    bf16,     ///< bfloat16 in the tile's order.
    f16,      ///< binary16 in the tile's order.
    int8,     ///< int8, and a scale for each group of a row.
    four,     ///< Places in a table of int8, 4 bits each, and a scale for each group of a row.
    three,    ///< The same of 3 bits.
    two,      ///< The same of 2 bits.
    channels, ///< 4 bits, with a step and a least number for each of head_dim.
};

/// One side of a tile as it is coded.
struct side_codes {
    code_format format = code_format::none;
    const std::byte* codes = nullptr;
    const half* scales = nullptr; ///< (groups, 16); of channels: the steps, then the least numbers, (2, value_width).
    const std::int8_t* table =
        nullptr;           ///< What places stand for, ascending; of channels in steps from the middle. (16)
    std::size_t group = 0; ///< Numbers of head_dim that share a scale.
    std::size_t bytes = 0; ///< From `codes` on, about: what is fetched before the tile is read.
};

/// Both sides of a tile.
struct coded_tile {
    side_codes keys;
    side_codes values;
};

} // namespace kvcache
