// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/kernel/math.hpp>
#include <kvcache/kernel/product.hpp>
#include <kvcache/model/tensor_view.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <variant>
#include <vector>

namespace kvcache {

/// y = x W^T + b with packed weights. Weights stored as BF16 stay BF16 in memory and F32 ones F32; F16 widens to F32.
/// All three are exact, so the format decides speed and memory, never bits of the product.
class linear {
public:
    linear() = default;

    /// Packs matrices of the same inputs below one another. Each (outputs, inputs), as stored.
    [[nodiscard]] static linear pack(std::span<const tensor_view> parts) {
        expects(!parts.empty(), "a linear map has a matrix");
        bool narrow = true;
        std::size_t outputs = 0;
        for (const tensor_view& part : parts) {
            narrow = narrow && part.dtype == dtype::bf16;
            outputs += part.shape.at(0);
        }
        linear made;
        if (narrow)
            made.weights_ = pack_as<std::uint16_t>(parts, outputs);
        else
            made.weights_ = pack_as<float>(parts, outputs);
        return made;
    }

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
    [[nodiscard]] const char* format() const { return weights_.index() == 0 ? "f32" : "bf16"; }

    /// (rows, inputs) -> (rows, outputs)
    void apply(const rows_in& x, const rows_out& y, team& threads) const {
        std::visit([&](const auto& w) { product(x, w, y, threads); }, weights_);
        if (!bias_.empty())
            for (std::size_t row = 0; row < x.rows; ++row)
                add_to({y.data + row * y.stride, bias_.size()}, bias_);
    }

    /// The weights of one output: an embedding's row. (inputs)
    void row(std::size_t output, std::span<float> out) const {
        std::visit([&](const auto& w) { w.row(output, out); }, weights_);
    }

private:
    template <weight_format Weight>
    [[nodiscard]] static packed_matrix<Weight> pack_as(std::span<const tensor_view> parts, std::size_t outputs) {
        const std::size_t inputs = parts[0].shape.at(1);
        packed_matrix<Weight> packed(outputs, inputs);
        std::vector<Weight> row(inputs);
        std::size_t output = 0;
        for (const tensor_view& part : parts)
            for (std::size_t i = 0; i < part.shape[0]; ++i) {
                read_row(part, i * inputs, row);
                packed.set_row(output++, row);
            }
        return packed;
    }

    static void read_row(const tensor_view& from, std::size_t first, std::span<float> row) { from.read(first, row); }
    static void read_row(const tensor_view& from, std::size_t first, std::span<std::uint16_t> row) {
        for (std::size_t i = 0; i < row.size(); ++i)
            row[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(from[first + i]) >> 16);
    }

    std::variant<packed_matrix<float>, packed_matrix<std::uint16_t>> weights_;
    std::vector<float> bias_;
};

} // namespace kvcache
