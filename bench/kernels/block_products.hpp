// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/shared_memory.hpp>
#include <kvcache/kernel/block_gemm.hpp>
#include <kvcache/kernel/block_int8_gemm.hpp>
#include <kvcache/kernel/block_matrix.hpp>

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "../support/machine.hpp"

namespace bench {

/// The matrices of layers of SmolLM2-135M in quantised blocks of one format, one after another in memory. Their bytes
/// are all the same, which no kernel looks at. Inputs are cut to whole blocks.
class block_layers {
public:
    /// As many layers as have `bytes`, one at least.
    block_layers(kvcache::block_format format, std::size_t bytes) : format_(format) {
        std::size_t layer = 0;
        for (const auto& [inputs, outputs] : shapes)
            layer += bytes_of(inputs, outputs);
        const std::size_t layers = bytes / layer + 1;
        const auto memory = kvcache::shared_memory(layers * layer, nullptr);
        std::memset(memory.get(), 0x22, layers * layer); // scales of 0.01, codes in the lower half
        for (std::byte* at = memory.get(); matrices_.size() < layers * shapes.size();)
            for (const auto& [inputs, outputs] : shapes) {
                const kvcache::block_part part{format, outputs};
                matrices_.emplace_back(std::span(&part, 1), whole(inputs),
                                       std::shared_ptr<const std::byte>(memory, at));
                at += bytes_of(inputs, outputs);
            }
    }

    /// Seconds of one product of `rows` rows with every matrix, exact or with int8 activations.
    [[nodiscard]] double seconds(const kvcache::rows_in& x, const kvcache::rows_out& y, bool int8,
                                 kvcache::thread_pool& threads) const {
        static kvcache::int8_block_rows scratch;
        const stopwatch watch;
        for (const kvcache::block_matrix& w : matrices_)
            int8 ? gemm(x, w, y, threads, scratch) : gemm(x, w, y, threads);
        return watch.seconds();
    }

    [[nodiscard]] double bytes() const {
        double all = 0.0;
        for (const kvcache::block_matrix& w : matrices_)
            all += static_cast<double>(w.bytes());
        return all;
    }
    /// Multiply-adds of one row.
    [[nodiscard]] double products() const {
        double all = 0.0;
        for (const kvcache::block_matrix& w : matrices_)
            all += static_cast<double>(w.inputs() * w.outputs());
        return all;
    }

private:
    struct shape {
        std::size_t inputs, outputs;
    };
    static constexpr std::array<shape, 4> shapes{{{576, 960}, {576, 576}, {576, 3072}, {1536, 576}}};

    [[nodiscard]] std::size_t whole(std::size_t inputs) const {
        const std::size_t block = kvcache::shape_of(format_).weights;
        return inputs / block * block;
    }
    [[nodiscard]] std::size_t bytes_of(std::size_t inputs, std::size_t outputs) const { // on whole cache lines
        const kvcache::block_part part{format_, outputs};
        return (kvcache::block_matrix::bytes_of({&part, 1}, whole(inputs)) + 63) / 64 * 64;
    }

    kvcache::block_format format_;
    std::vector<kvcache::block_matrix> matrices_;
};

} // namespace bench
