// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/core/little_endian.hpp>
#include <kvcache/core/number_format.hpp>
#include <kvcache/kernel/block_format.hpp>
#include <kvcache/kernel/quant_block.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Widens stored blocks to float32: exactly the numbers of the reference of GGUF (the Python package `gguf`), bit for
/// bit on every target; a NaN stays NaN, with unspecified bits. blocks: (out.size() / weights, bytes) of
/// shape_of(format), in file order at any alignment. Requires: `out` is whole blocks, and `blocks` is as many. Cost:
/// scalar code, for loading and single rows; products read packed blocks.
inline void dequantize(block_format format, std::span<const std::byte> blocks, std::span<float> out) {
    const block_shape shape = shape_of(format);
    expects(out.size() % shape.weights == 0 && blocks.size() == out.size() / shape.weights * shape.bytes,
            "blocks and their weights are as many");
    for (std::size_t i = 0; i < out.size(); i += shape.weights) {
        const auto block = blocks.subspan(i / shape.weights * shape.bytes, shape.bytes);
        switch (format) {
        case block_format::f32:
            out[i] = std::bit_cast<float>(load_little<std::uint32_t>(block, 0));
            break;
        case block_format::f16:
            out[i] = widen(half{load_little<std::uint16_t>(block, 0)});
            break;
        case block_format::bf16:
            out[i] = widen(bfloat16{load_little<std::uint16_t>(block, 0)});
            break;
        default: {
            const quant_block parts = read_block(format, block);
            for (std::size_t w = 0; w < shape.weights; ++w)
                out[i + w] = parts.weight(w);
        }
        }
    }
}

}} // namespace kvcache
