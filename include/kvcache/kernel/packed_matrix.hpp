// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/aligned.hpp>
#include <kvcache/core/contract.hpp>
#include <kvcache/kernel/number_format.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace kvcache {

/// The weights of y = W x, packed once for the product: panels of 16 outputs, in each the inputs ascending and for
/// every input its 16 weights side by side. (outputs / 16, inputs, 16), zeros behind the last output.
///
/// It owns its memory, or looks at weights packed before (a mapped file) whose keeper it holds. A copy of an owner owns
/// a copy; copies of a view look at the same weights.
template <weight_format Weight>
class packed_matrix {
public:
    static constexpr std::size_t panel_width = 16;

    /// The panels of this many outputs.
    [[nodiscard]] static constexpr std::size_t panels_of(std::size_t outputs) noexcept {
        return (outputs + panel_width - 1) / panel_width;
    }

    packed_matrix() = default;
    packed_matrix(std::size_t outputs, std::size_t inputs)
        : outputs_(outputs), inputs_(inputs), own_(panels() * inputs * panel_width) {}

    /// Looks at weights that are packed already, on a cache line. (outputs / 16, inputs, 16)
    packed_matrix(std::size_t outputs, std::size_t inputs, const Weight* packed, std::shared_ptr<const void> keeper)
        : outputs_(outputs), inputs_(inputs), view_(packed), keeper_(std::move(keeper)) {
        expects(reinterpret_cast<std::uintptr_t>(packed) % line_bytes == 0, "packed weights begin on a cache line");
    }

    /// Places the weights of one output. (inputs) Requires: this owns its memory. Cost: a cache line a weight;
    /// pack_panel() is for many outputs.
    void set_row(std::size_t output, std::span<const Weight> weights) {
        expects(output < outputs_ && weights.size() == inputs_, "a packed row is one output's weights");
        expects(view_ == nullptr, "weights are set where they are owned");
        Weight* to = own_.data() + output / panel_width * inputs_ * panel_width + output % panel_width;
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
    [[nodiscard]] std::size_t panels() const noexcept { return panels_of(outputs_); }
    [[nodiscard]] std::size_t bytes() const noexcept { return panels() * inputs_ * panel_width * sizeof(Weight); }

    /// The weights of outputs [16 * index, 16 * index + 16). (inputs, 16)
    [[nodiscard]] const Weight* panel(std::size_t index) const noexcept {
        return (view_ != nullptr ? view_ : own_.data()) + index * inputs_ * panel_width;
    }

private:
    std::size_t outputs_ = 0;
    std::size_t inputs_ = 0;
    aligned_vector<Weight> own_;
    const Weight* view_ = nullptr;
    std::shared_ptr<const void> keeper_;
};

} // namespace kvcache
