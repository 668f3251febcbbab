// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/aligned.hpp>
#include <kvcache/core/contract.hpp>
#include <kvcache/kernel/number_format.hpp>

#include <cstddef>
#include <span>

namespace kvcache {

/// The weights of y = W x, packed once for the product: panels of 32 outputs, in each the inputs ascending and for
/// every input its 32 weights side by side. (outputs / 32, inputs, 32), zeros behind the last output.
template <weight_format Weight>
class packed_matrix {
public:
    static constexpr std::size_t panel_width = 32;

    packed_matrix() = default;
    packed_matrix(std::size_t outputs, std::size_t inputs)
        : outputs_(outputs), inputs_(inputs), numbers_(panels() * inputs * panel_width) {}

    /// Places the weights of one output. (inputs)
    void set_row(std::size_t output, std::span<const Weight> weights) {
        expects(output < outputs_ && weights.size() == inputs_, "a packed row is one output's weights");
        Weight* to = numbers_.data() + output / panel_width * inputs_ * panel_width + output % panel_width;
        for (std::size_t k = 0; k < inputs_; ++k)
            to[k * panel_width] = weights[k];
    }

    /// The weights of one output, widened. (inputs)
    void row(std::size_t output, std::span<float> out) const {
        expects(output < outputs_ && out.size() == inputs_, "a packed row is one output's weights");
        const Weight* from = panel(output / panel_width) + output % panel_width;
        for (std::size_t k = 0; k < inputs_; ++k)
            out[k] = widen(from[k * panel_width]);
    }

    [[nodiscard]] std::size_t outputs() const noexcept { return outputs_; }
    [[nodiscard]] std::size_t inputs() const noexcept { return inputs_; }
    [[nodiscard]] std::size_t panels() const noexcept { return (outputs_ + panel_width - 1) / panel_width; }
    [[nodiscard]] std::size_t bytes() const noexcept { return numbers_.size() * sizeof(Weight); }

    /// The weights of outputs [32 * index, 32 * index + 32). (inputs, 32)
    [[nodiscard]] const Weight* panel(std::size_t index) const noexcept {
        return numbers_.data() + index * inputs_ * panel_width;
    }

private:
    std::size_t outputs_ = 0;
    std::size_t inputs_ = 0;
    aligned_vector<Weight> numbers_;
};

} // namespace kvcache
