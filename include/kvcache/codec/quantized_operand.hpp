// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/number_format.hpp>

#include <cstddef>
#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI { namespace codec {

/// Storage format of the keys or values of a tile, so that attention reads them without decoding the tile.
enum class quant_format : std::uint8_t {
    none,     ///< Not readable without decoding: the tile is decoded.
    bf16,     ///< bfloat16 in the tile's order.
    f16,      ///< binary16 in the tile's order.
    int8,     ///< int8 with a scale for each group of a row.
    four,     ///< 4-bit indices into a table of int8, with a scale for each group of a row.
    three,    ///< 3-bit indices, as `four`.
    two,      ///< 2-bit indices, as `four`.
    channels, ///< 4-bit codes with a step and a minimum for each element of head_dim.
};

/// The keys or the values of a tile, in quantized form.
struct quantized_operand {
    quant_format format = quant_format::none;
    const std::byte* codes = nullptr;
    const half* scales = nullptr; ///< (groups, 16); with `channels` the steps, then the minima: (2, padded_head_dim).
    const std::int8_t* table = nullptr; ///< Value of each index, ascending; of `channels` from the middle. (16)
    std::size_t group = 0;              ///< Elements of head_dim that share a scale.
    std::size_t bytes = 0; ///< Approximate number of bytes from `codes` on, to prefetch before the tile is read.
};

/// Keys and values of a tile, in quantized form.
struct quantized_tile {
    quantized_operand keys;
    quantized_operand values;
};

}}} // namespace kvcache::codec
