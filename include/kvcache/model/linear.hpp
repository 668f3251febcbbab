// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/core/shared_memory.hpp>
#include <kvcache/core/zeroed_memory.hpp>
#include <kvcache/kernel/block_gemm.hpp>
#include <kvcache/kernel/block_int8_gemm.hpp>
#include <kvcache/kernel/gemm.hpp>
#include <kvcache/kernel/int8_block_rows.hpp>
#include <kvcache/kernel/int8_gemm.hpp>
#include <kvcache/kernel/math.hpp>
#include <kvcache/model/packing.hpp>
#include <kvcache/model/tensor_view.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Memory of a linear map's quantized activations, reused from one product to the next.
struct linear_scratch {
    int8_rows rows;
    int8_block_rows blocks;
};

/// Linear map y = x W^T + b with packed weights in their stored format: F32, BF16, F16 or quantised blocks. All widen
/// exactly to float32, so the format determines speed and memory, never the bits of the result. Alternatively weights
/// are int8, or the activations that meet blocks are: different, coarser maps. Copies share the weights.
class linear {
public:
    linear() = default;

    /// Packs matrices with the same number of inputs, concatenated along the outputs; numbers of different formats
    /// become F32. Each is (outputs, inputs), as stored.
    [[nodiscard]] static linear pack(std::span<const tensor_view> parts, thread_pool& threads) {
        expects(!parts.empty(), "a linear map has a matrix");
        const matrix_format format = packed_format(parts);
        std::size_t outputs = 0;
        for (const tensor_view& part : parts)
            outputs += part.shape.at(0);
        const auto memory = shared_memory(packed_bytes(format, outputs, parts[0].shape.at(1)), nullptr);
        pack_rows(parts, format, memory.get(), threads);
        return packed(format, outputs, parts[0].shape[1], memory);
    }
    [[nodiscard]] static linear pack(std::span<const tensor_view> parts) {
        thread_pool alone;
        return pack(parts, alone);
    }

    /// Views weights that pack_rows() has packed, and keeps them alive. Layout as in packed_matrix or block_matrix.
    [[nodiscard]] static linear packed(const matrix_format& format, std::size_t outputs, std::size_t inputs,
                                       const std::shared_ptr<const std::byte>& weights) {
        linear made;
        if (!format.blocks.empty()) {
            made.weights_ = block_matrix(format.blocks, inputs, weights);
            return made;
        }
        switch (format.numbers) {
        case dtype::f32:
            made.weights_ = looking_at<float>(outputs, inputs, weights);
            break;
        case dtype::bf16:
            made.weights_ = looking_at<bfloat16>(outputs, inputs, weights);
            break;
        case dtype::f16:
            made.weights_ = looking_at<half>(outputs, inputs, weights);
            break;
        }
        return made;
    }

    /// Bytes of the same map in int8 beyond its own: none for quantised blocks.
    [[nodiscard]] std::size_t int8_bytes() const {
        return is_blocks() ? 0 : int8_matrix::bytes_of(outputs(), inputs());
    }

    /// Returns the map in int8, another and coarser map. Quantised blocks stay as they are, and the activations that
    /// meet them are rounded to int8 in blocks of 32, as llama.cpp does. Other weights become int8, one scale for each
    /// output, in int8_bytes() of `memory` on a cache line, which it keeps alive; they meet int8 activations with one
    /// scale for each row. Cost: reads every weight that is not in blocks once, with all threads.
    [[nodiscard]] linear in_int8(thread_pool& threads, std::shared_ptr<std::byte> memory) const {
        linear made = *this;
        if (is_blocks()) {
            made.int8_activations_ = true;
            return made;
        }
        int8_matrix rounded(outputs(), inputs(), std::move(memory));
        threads.parallel_for(outputs(), outputs() * inputs(), [&](std::size_t begin, std::size_t end) {
            std::vector<float> weights(inputs());
            for (std::size_t output = begin; output < end; ++output) {
                row(output, weights);
                rounded.set_row(output, weights);
            }
        });
        made.weights_ = std::move(rounded);
        return made;
    }
    [[nodiscard]] linear in_int8(thread_pool& threads) const {
        return in_int8(threads, shared_memory(int8_bytes(), nullptr));
    }

    /// Returns whether in_int8() made another map of quantised blocks.
    [[nodiscard]] bool has_int8_activations() const noexcept { return int8_activations_; }

    void set_bias(std::vector<float> bias) {
        expects(bias.size() == outputs(), "a bias has one number an output");
        bias_ = std::move(bias);
    }

    [[nodiscard]] std::size_t outputs() const {
        return std::visit([](const auto& w) { return w.outputs(); }, weights_);
    }
    [[nodiscard]] std::size_t inputs() const {
        return std::visit([](const auto& w) { return w.inputs(); }, weights_);
    }
    [[nodiscard]] std::size_t bytes() const {
        return std::visit([](const auto& w) { return w.bytes(); }, weights_);
    }
    /// Format of the weights: "f32", "bf16", "f16", "int8", or that of their blocks, such as "Q4_K" or "Q4_K+Q6_K".
    [[nodiscard]] std::string format() const {
        if (const auto* const blocks = std::get_if<block_matrix>(&weights_)) {
            std::string names;
            for (std::size_t i = 0; i < blocks->parts(); ++i)
                names.append(i > 0 ? "+" : "").append(name_of(blocks->part(i).format));
            return names;
        }
        return std::array{"f32", "bf16", "f16", "int8"}[weights_.index()];
    }

    /// Computes y. (rows, inputs) -> (rows, outputs) `scratch` stores quantized activations. A template, so
    /// that only translation units that use it compile the GEMM.
    template <std::same_as<thread_pool> Threads>
    void apply(const rows_in& x, const rows_out& y, Threads& threads, linear_scratch& scratch) const {
        std::visit(
            [&](const auto& w) {
                if constexpr (std::same_as<decltype(w), const int8_matrix&>)
                    gemm(x, w, y, threads, scratch.rows);
                else if constexpr (std::same_as<decltype(w), const block_matrix&>)
                    int8_activations_ ? gemm(x, w, y, threads, scratch.blocks) : gemm(x, w, y, threads);
                else
                    gemm(x, w, y, threads);
            },
            weights_);
        if (!bias_.empty())
            for (std::size_t row = 0; row < x.rows; ++row)
                add_to({y.data + row * y.stride, bias_.size()}, bias_);
    }

    /// Weights of one output, such as the row of an embedding. (inputs)
    void row(std::size_t output, std::span<float> out) const {
        std::visit([&](const auto& w) { w.row(output, out); }, weights_);
    }

private:
    [[nodiscard]] bool is_blocks() const noexcept { return std::holds_alternative<block_matrix>(weights_); }

    template <weight_format Weight>
    [[nodiscard]] static packed_matrix<Weight> looking_at(std::size_t outputs, std::size_t inputs,
                                                          const std::shared_ptr<const std::byte>& weights) {
        return {outputs, inputs, reinterpret_cast<const Weight*>(weights.get()), weights};
    }

    std::variant<packed_matrix<float>, packed_matrix<bfloat16>, packed_matrix<half>, int8_matrix, block_matrix>
        weights_;
    bool int8_activations_ = false;
    std::vector<float> bias_;
};

}} // namespace kvcache
