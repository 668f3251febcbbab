// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/core/number_format.hpp>
#include <kvcache/kernel/native.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

/// Panels of 16 outputs of a strip: as many as a register tile has.
inline constexpr std::size_t strip_panels = native_lanes == 16 ? 3 : 1;

} // namespace detail

/// Weights of y = W x, packed once for GEMM in strips of outputs. A strip has its inputs in ascending order, and for
/// each input the weights of all its outputs contiguously, so that a tile reads a strip sequentially. A strip has as
/// many panels of 16 outputs as a tile: 3 with 16-lane vectors, else 1. The last strip has the remaining panels, padded
/// with zero outputs. (outputs / strip_width, inputs, width)
///
/// It owns its memory, or views weights that are already packed (in a mapped file) and keeps their owner alive. Copying
/// an owning matrix copies the weights; copies of a view share them.
template <weight_format Weight>
class packed_matrix {
public:
    static constexpr std::size_t panel_width = 16;
    static constexpr std::size_t strip_panels = detail::strip_panels;
    static constexpr std::size_t strip_width = strip_panels * panel_width;

    /// Panels for this many outputs, and strips.
    [[nodiscard]] static constexpr std::size_t panels_of(std::size_t outputs) noexcept {
        return (outputs + panel_width - 1) / panel_width;
    }
    [[nodiscard]] static constexpr std::size_t strips_of(std::size_t outputs) noexcept {
        return (outputs + strip_width - 1) / strip_width;
    }
    /// Outputs of one strip, including the padding of its last panel.
    [[nodiscard]] static constexpr std::size_t width_of(std::size_t outputs, std::size_t strip) noexcept {
        return std::min(strip_panels, panels_of(outputs) - strip * strip_panels) * panel_width;
    }

    packed_matrix() = default;
    packed_matrix(std::size_t outputs, std::size_t inputs)
        : outputs_(outputs), inputs_(inputs), own_(panels() * inputs * panel_width) {}

    /// Views packed weights. Requires: they begin on a cache line.
    packed_matrix(std::size_t outputs, std::size_t inputs, const Weight* packed, std::shared_ptr<const void> keeper)
        : outputs_(outputs), inputs_(inputs), view_(packed), keeper_(std::move(keeper)) {
        expects(reinterpret_cast<std::uintptr_t>(packed) % line_bytes == 0, "packed weights begin on a cache line");
    }

    /// Sets the weights of one output. (inputs) Requires: this owns its memory. Cost: a cache line for each weight; use
    /// pack_b() for many outputs.
    void set_row(std::size_t output, std::span<const Weight> weights) {
        expects(output < outputs_ && weights.size() == inputs_, "a packed row is one output's weights");
        expects(view_ == nullptr, "weights are set where they are owned");
        const std::size_t index = output / strip_width, step = width(index);
        Weight* to = own_.data() + index * inputs_ * strip_width + output % strip_width;
        for (std::size_t k = 0; k < inputs_; ++k)
            to[k * step] = weights[k];
    }

    /// Weights of one output, widened to float32. (inputs)
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

    /// Weights of the outputs from strip_width * index on. (inputs, width(index))
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

}} // namespace kvcache
