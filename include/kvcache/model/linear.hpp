// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/kernel/math.hpp>
#include <kvcache/kernel/product.hpp>
#include <kvcache/model/tensor_view.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <utility>
#include <variant>
#include <vector>

namespace kvcache {

/// y = x W^T + b with packed weights, kept in the format they are stored in: F32, BF16 or F16. All three widen exactly,
/// so the format decides speed and memory, never bits of the product.
class linear {
public:
    linear() = default;

    /// Packs matrices of the same inputs below one another; parts of different formats become F32. Each
    /// (outputs, inputs), as stored.
    [[nodiscard]] static linear pack(std::span<const tensor_view> parts) {
        expects(!parts.empty(), "a linear map has a matrix");
        const auto all = [&](dtype type) {
            return std::ranges::all_of(parts, [&](const tensor_view& part) { return part.dtype == type; });
        };
        linear made;
        if (all(dtype::bf16))
            made.weights_ = pack_as<bfloat16>(parts);
        else if (all(dtype::f16))
            made.weights_ = pack_as<half>(parts);
        else
            made.weights_ = pack_as<float>(parts);
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
    [[nodiscard]] const char* format() const { return std::array{"f32", "bf16", "f16"}[weights_.index()]; }

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
    [[nodiscard]] static packed_matrix<Weight> pack_as(std::span<const tensor_view> parts) {
        std::size_t outputs = 0;
        for (const tensor_view& part : parts)
            outputs += part.shape.at(0);
        const std::size_t inputs = parts[0].shape.at(1);
        packed_matrix<Weight> packed(outputs, inputs);
        std::vector<Weight> row(inputs);
        std::size_t output = 0;
        for (const tensor_view& part : parts)
            for (std::size_t i = 0; i < part.shape[0]; ++i) {
                read_row(part, i * inputs, std::span<Weight>(row));
                packed.set_row(output++, row);
            }
        return packed;
    }

    static void read_row(const tensor_view& from, std::size_t first, std::span<float> row) { from.read(first, row); }
    template <class Narrow>
    static void read_row(const tensor_view& from, std::size_t first, std::span<Narrow> row) {
        for (std::size_t i = 0; i < row.size(); ++i)
            row[i].bits = from.bits(first + i);
    }

    std::variant<packed_matrix<float>, packed_matrix<bfloat16>, packed_matrix<half>> weights_;
    std::vector<float> bias_;
};

} // namespace kvcache
