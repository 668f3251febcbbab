// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/core/shared_memory.hpp>
#include <kvcache/kernel/block_gemm.hpp>
#include <kvcache/kernel/block_int8_gemm.hpp>
#include <kvcache/kernel/block_matrix.hpp>
#include <kvcache/kernel/gemm.hpp>
#include <kvcache/kernel/gemm_packing.hpp>
#include <kvcache/kernel/math.hpp>
#include <kvcache/kernel/quant_block.hpp>
#include <kvcache/kernel/thread_pool.hpp>
#include <kvcache/model/packed_weights.hpp>
#include <kvcache/model/tensor_view.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Linear map y = x W^T + b with packed weights in their stored format: F32, BF16, F16 or quantised blocks. All widen
/// exactly to float32, so the format determines speed and memory, never the bits of the result. Alternatively products
/// are of int8: another, coarser map. Copies share the weights.
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

    /// Bytes of the same map in int8 beyond its own, whole cache lines: none for quantised blocks.
    [[nodiscard]] std::size_t int8_bytes() const {
        const block_part part{block_format::q8_0, outputs()};
        const std::size_t bytes = becomes_blocks() ? block_matrix::bytes_of({&part, 1}, inputs()) : 0;
        return (bytes + line_bytes - 1) / line_bytes * line_bytes;
    }

    /// Returns the map in int8, another and coarser map: the activations are rounded to int8 in blocks of 32, as
    /// llama.cpp does, and so are weights that are not in quantised blocks (quantize_q8_0), in int8_bytes() of `memory`
    /// on a cache line, which it keeps alive. A map whose inputs are no multiple of 32 stays exact. Cost: reads every
    /// weight that is not in blocks once, with all threads.
    [[nodiscard]] linear in_int8(thread_pool& threads, const std::shared_ptr<std::byte>& memory) const {
        linear made = *this;
        if (becomes_blocks())
            made.weights_ = in_q8_0(threads, memory);
        made.int8_activations_ = made.is_blocks();
        return made;
    }
    [[nodiscard]] linear in_int8(thread_pool& threads) const {
        return in_int8(threads, shared_memory(int8_bytes(), nullptr));
    }

    /// Returns whether in_int8() made another map.
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
    /// Format of the weights: "f32", "bf16", "f16", or that of their blocks, such as "Q4_K" or "Q4_K+Q6_K".
    [[nodiscard]] std::string format() const {
        if (const auto* const blocks = std::get_if<block_matrix>(&weights_)) {
            std::string names;
            for (std::size_t i = 0; i < blocks->parts(); ++i)
                names.append(i > 0 ? "+" : "").append(name_of(blocks->part(i).format));
            return names;
        }
        return std::array{"f32", "bf16", "f16"}[weights_.index()];
    }

    /// Computes y. (rows, inputs) -> (rows, outputs) `scratch` stores rounded activations, and is reused from one
    /// product to the next. A template, so that only translation units that use it compile the GEMM.
    template <std::same_as<thread_pool> Threads>
    void apply(const rows_in& x, const rows_out& y, Threads& threads, int8_block_rows& scratch) const {
        if (int8_activations_)
            gemm(x, std::get<block_matrix>(weights_), y, threads, scratch);
        else
            std::visit([&](const auto& w) { gemm(x, w, y, threads); }, weights_);
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
    [[nodiscard]] bool becomes_blocks() const { return !is_blocks() && inputs() % int8_block_rows::block == 0; }

    [[nodiscard]] block_matrix in_q8_0(thread_pool& threads, const std::shared_ptr<std::byte>& memory) const {
        const block_part part{block_format::q8_0, outputs()};
        const block_shape shape = shape_of(part.format);
        const std::size_t row_bytes = inputs() / shape.weights * shape.bytes,
                          bytes = panel_bytes(part.format, inputs());
        threads.parallel_for((outputs() + 15) / 16, outputs() * inputs(), [&](std::size_t begin, std::size_t end) {
            std::vector<float> weights(inputs());
            std::vector<std::byte> stored(16 * row_bytes);
            for (std::size_t panel = begin; panel < end; ++panel) {
                std::array<const std::byte*, 16> rows = {};
                for (std::size_t r = 0; r < std::min<std::size_t>(16, outputs() - panel * 16); ++r) {
                    const auto to = std::span(stored).subspan(r * row_bytes, row_bytes);
                    row(panel * 16 + r, weights);
                    quantize_q8_0(weights, to);
                    rows[r] = to.data();
                }
                pack_panel(part.format, rows, inputs(), memory.get() + panel * bytes);
            }
        });
        return {{&part, 1}, inputs(), memory};
    }

    template <weight_format Weight>
    [[nodiscard]] static packed_matrix<Weight> looking_at(std::size_t outputs, std::size_t inputs,
                                                          const std::shared_ptr<const std::byte>& weights) {
        return {outputs, inputs, reinterpret_cast<const Weight*>(weights.get()), weights};
    }

    std::variant<packed_matrix<float>, packed_matrix<bfloat16>, packed_matrix<half>, block_matrix> weights_;
    bool int8_activations_ = false;
    std::vector<float> bias_;
};

}} // namespace kvcache
