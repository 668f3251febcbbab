// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/shared_memory.hpp>
#include <kvcache/kernel/block_matrix.hpp>
#include <kvcache/kernel/quant_block.hpp>
#include <kvcache/kernel/thread_pool.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernel/blocks.hpp"

namespace blocks {

/// A packed block matrix, and its weights dequantised.
struct problem {
    std::size_t outputs = 0, inputs = 0;
    std::vector<float> weights; // (outputs, inputs)
    std::shared_ptr<std::byte> memory;
    kv::block_matrix matrix;

    /// Of the usual weights.
    problem(const std::vector<kv::block_part>& parts, std::size_t k, std::uint64_t seed) : inputs(k) {
        std::vector<std::vector<std::byte>> bytes;
        for (const kv::block_part& part : parts)
            bytes.push_back(usual(part.format, part.outputs * k / kv::shape_of(part.format).weights, seed++));
        fill(parts, bytes);
    }

    /// One part, with the blocks `bytes`, of which there may be more.
    problem(kv::block_part part, std::size_t k, const std::vector<std::byte>& bytes) : inputs(k) {
        fill({part}, {bytes});
    }

private:
    void fill(const std::vector<kv::block_part>& parts, const std::vector<std::vector<std::byte>>& bytes) {
        memory = kv::shared_memory(kv::block_matrix::bytes_of(parts, inputs), nullptr);
        std::byte* to = memory.get();
        for (std::size_t p = 0; p < parts.size(); ++p) {
            const auto& [format, count] = parts[p];
            const std::size_t row_bytes = inputs / kv::shape_of(format).weights * kv::shape_of(format).bytes;
            weights.resize((outputs + count) * inputs);
            kv::dequantize(format, std::span(bytes[p]).first(count * row_bytes),
                           std::span(weights).subspan(outputs * inputs));
            for (std::size_t first = 0; first < count; first += 16) {
                std::array<const std::byte*, 16> rows = {};
                for (std::size_t r = 0; r < 16 && first + r < count; ++r)
                    rows[r] = bytes[p].data() + (first + r) * row_bytes;
                kv::pack_panel(format, rows, inputs, to);
                to += kv::panel_bytes(format, inputs);
            }
            outputs += count;
        }
        matrix = {parts, inputs, memory};
    }
};

/// Pools of 1 to `most` threads.
inline std::vector<kv::thread_pool> pools(std::size_t most) {
    std::vector<kv::thread_pool> made;
    for (std::size_t threads = 1; threads <= most; ++threads)
        made.emplace_back(threads);
    return made;
}

} // namespace blocks
