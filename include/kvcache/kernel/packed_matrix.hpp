// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/aligned.hpp>
#include <kvcache/core/contract.hpp>
#include <kvcache/kernel/native.hpp>
#include <kvcache/kernel/number_format.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace kvcache::inline KVCACHE_ABI {

/// The weights of y = W x, packed once for the product: strips of outputs, in each the inputs ascending and for every
/// input the weights of all its outputs side by side, so that a tile reads them from the first byte to the last. A
/// strip has as many panels of 16 outputs as a tile: 3 where vectors have 16 numbers, else 1; the last has those that
/// are left, and zeros behind the last output. (outputs / strip_width, inputs, width)
///
/// It owns its memory, or looks at weights packed before (a mapped file) whose keeper it holds. A copy of an owner owns
/// a copy; copies of a view look at the same weights.
template <weight_format Weight>
class packed_matrix {
public:
    static constexpr std::size_t panel_width = 16;
    static constexpr std::size_t strip_panels = detail::native_lanes == 16 ? 3 : 1;
    static constexpr std::size_t strip_width = strip_panels * panel_width;

    /// The panels of this many outputs, and the strips.
    [[nodiscard]] static constexpr std::size_t panels_of(std::size_t outputs) noexcept {
        return (outputs + panel_width - 1) / panel_width;
    }
    [[nodiscard]] static constexpr std::size_t strips_of(std::size_t outputs) noexcept {
        return (outputs + strip_width - 1) / strip_width;
    }
    /// Outputs side by side in a strip of a matrix of so many, with those that only fill a panel up.
    [[nodiscard]] static constexpr std::size_t width_of(std::size_t outputs, std::size_t strip) noexcept {
        return std::min(strip_panels, panels_of(outputs) - strip * strip_panels) * panel_width;
    }

    packed_matrix() = default;
    packed_matrix(std::size_t outputs, std::size_t inputs)
        : outputs_(outputs), inputs_(inputs), own_(panels() * inputs * panel_width) {}

    /// Looks at weights that are packed already, on a cache line.
    packed_matrix(std::size_t outputs, std::size_t inputs, const Weight* packed, std::shared_ptr<const void> keeper)
        : outputs_(outputs), inputs_(inputs), view_(packed), keeper_(std::move(keeper)) {
        expects(reinterpret_cast<std::uintptr_t>(packed) % line_bytes == 0, "packed weights begin on a cache line");
    }

    /// Places the weights of one output. (inputs) Requires: this owns its memory. Cost: a cache line a weight;
    /// pack_strip() is for many outputs.
    void set_row(std::size_t output, std::span<const Weight> weights) {
        expects(output < outputs_ && weights.size() == inputs_, "a packed row is one output's weights");
        expects(view_ == nullptr, "weights are set where they are owned");
        const std::size_t index = output / strip_width, step = width(index);
        Weight* to = own_.data() + index * inputs_ * strip_width + output % strip_width;
        for (std::size_t k = 0; k < inputs_; ++k)
            to[k * step] = weights[k];
    }

    /// The weights of one output, widened. (inputs)
    void row(std::size_t output, std::span<float> out) const {
        expects(output < outputs_ && out.size() == inputs_, "a packed row is one output's weights");
        const std::size_t index = output / strip_width, step = width(index);
        const Weight* from = strip(index) + output % strip_width;
        for (std::size_t k = 0; k < inputs_; ++k)
            out[k] = widen(from[k * step]);
    }

    [[nodiscard]] std::size_t outputs() const noexcept { return outputs_; }
    [[nodiscard]] std::size_t inputs() const noexcept { return inputs_; }
    [[nodiscard]] std::size_t panels() const noexcept { return panels_of(outputs_); }
    [[nodiscard]] std::size_t strips() const noexcept { return strips_of(outputs_); }
    [[nodiscard]] std::size_t width(std::size_t strip) const noexcept { return width_of(outputs_, strip); }
    [[nodiscard]] std::size_t bytes() const noexcept { return panels() * inputs_ * panel_width * sizeof(Weight); }

    /// The weights of the outputs from strip_width * index on. (inputs, width(index))
    [[nodiscard]] const Weight* strip(std::size_t index) const noexcept {
        return (view_ != nullptr ? view_ : own_.data()) + index * inputs_ * strip_width;
    }

private:
    std::size_t outputs_ = 0;
    std::size_t inputs_ = 0;
    aligned_vector<Weight> own_;
    const Weight* view_ = nullptr;
    std::shared_ptr<const void> keeper_;
};

} // namespace kvcache
