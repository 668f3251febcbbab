// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/core/shared_memory.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Weights of y = W x as int8 with one scale for each output: w = q * scale, |q| <= 127. Packed in panels of 16
/// outputs; a panel has its inputs in ascending groups of four, with 16 x 4 weights for each group, the layout of the
/// dot-product instructions of x86 (VNNI) and ARM. (outputs / 16, inputs / 4, 16, 4), padded with zeros. Copies share
/// the weights.
class int8_matrix {
public:
    static constexpr std::size_t panel_width = 16;
    static constexpr std::size_t most_inputs = 65536; ///< So that no int32 sum of byte products overflows.

    int8_matrix() = default;

    /// Bytes of a matrix with its scales and sums: a multiple of a cache line.
    [[nodiscard]] static constexpr std::size_t bytes_of(std::size_t outputs, std::size_t inputs) noexcept {
        return panels_of(outputs) * (panel_bytes_of(inputs) + panel_width * (sizeof(float) + sizeof(std::int32_t)));
    }

    /// A matrix of zeros in its own memory. Requires: inputs <= most_inputs.
    int8_matrix(std::size_t outputs, std::size_t inputs)
        : int8_matrix(outputs, inputs, shared_memory(bytes_of(outputs, inputs), nullptr)) {}

    /// A matrix of zeros in bytes_of() bytes that begin on a cache line; it keeps them alive. Small matrices in one
    /// allocation get huge pages, which separate allocations would not.
    int8_matrix(std::size_t outputs, std::size_t inputs, std::shared_ptr<std::byte> memory)
        : outputs_(outputs),
          inputs_(inputs),
          levels_(reinterpret_cast<std::int8_t*>(memory.get())),
          scales_(reinterpret_cast<float*>(levels_ + panels() * panel_bytes())),
          sums_(reinterpret_cast<std::int32_t*>(scales_ + panels() * panel_width)),
          memory_(std::move(memory)) {
        expects(inputs <= most_inputs, "an int8 matrix has at most 65536 inputs");
        expects(reinterpret_cast<std::uintptr_t>(memory_.get()) % line_bytes == 0,
                "packed weights begin on a cache line");
        std::memset(memory_.get(), 0, bytes());
    }

    /// Quantizes the weights of one output to the nearest of 255 levels, ties to even. (inputs) The error of a weight
    /// is at most half a step, max |weight| / 254. With an infinite or NaN weight the scale is NaN and every level
    /// zero. Several threads may set different outputs.
    void set_row(std::size_t output, std::span<const float> weights) {
        expects(output < outputs_ && weights.size() == inputs_, "a packed row is one output's weights");
        float largest = 0.0f;
        bool finite = true;
        for (const float w : weights) {
            largest = std::max(largest, std::fabs(w));
            finite = finite && std::isfinite(w);
        }
        const float scale = finite ? largest / 127.0f : std::numeric_limits<float>::quiet_NaN();
        std::int8_t* to = levels_ + output / panel_width * panel_bytes() + output % panel_width * inputs_together;
        std::int32_t sum = 0;
        for (std::size_t k = 0; k < inputs_; ++k) {
            const float level = scale > 0.0f ? std::nearbyint(weights[k] / scale) : 0.0f;
            const auto q = static_cast<std::int8_t>(std::clamp(level, -127.0f, 127.0f));
            to[k / inputs_together * panel_width * inputs_together + k % inputs_together] = q;
            sum += q;
        }
        scales_[output] = scale;
        sums_[output] = sum;
    }

    /// Dequantizes the weights of one output. (inputs)
    void row(std::size_t output, std::span<float> out) const {
        expects(output < outputs_ && out.size() == inputs_, "a packed row is one output's weights");
        const std::int8_t* from = panel(output / panel_width) + output % panel_width * inputs_together;
        for (std::size_t k = 0; k < inputs_; ++k) {
            const std::size_t group = k / inputs_together * panel_width * inputs_together;
            out[k] = static_cast<float>(from[group + k % inputs_together]) * scales_[output];
        }
    }

    [[nodiscard]] std::size_t outputs() const noexcept { return outputs_; }
    [[nodiscard]] std::size_t inputs() const noexcept { return inputs_; }
    [[nodiscard]] std::size_t panels() const noexcept { return panels_of(outputs_); }
    /// Groups of four inputs.
    [[nodiscard]] std::size_t fours() const noexcept { return fours_of(inputs_); }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_of(outputs_, inputs_); }

    /// Weights of outputs [16 * index, 16 * index + 16). (inputs / 4, 16, 4)
    [[nodiscard]] const std::int8_t* panel(std::size_t index) const noexcept { return levels_ + index * panel_bytes(); }
    /// Scales from output 16 * index on. (16)
    [[nodiscard]] const float* scales(std::size_t index) const noexcept { return scales_ + index * panel_width; }
    /// Sums of each output's levels, from output 16 * index on. (16)
    [[nodiscard]] const std::int32_t* sums(std::size_t index) const noexcept { return sums_ + index * panel_width; }

private:
    static constexpr std::size_t inputs_together = 4;

    [[nodiscard]] static constexpr std::size_t panels_of(std::size_t outputs) noexcept {
        return (outputs + panel_width - 1) / panel_width;
    }
    [[nodiscard]] static constexpr std::size_t fours_of(std::size_t inputs) noexcept {
        return (inputs + inputs_together - 1) / inputs_together;
    }
    [[nodiscard]] static constexpr std::size_t panel_bytes_of(std::size_t inputs) noexcept {
        return fours_of(inputs) * inputs_together * panel_width;
    }
    [[nodiscard]] std::size_t panel_bytes() const noexcept { return panel_bytes_of(inputs_); }

    std::size_t outputs_ = 0;
    std::size_t inputs_ = 0;
    std::int8_t* levels_ = nullptr; // (panels, fours, 16, 4), followed by:
    float* scales_ = nullptr;       // (panels, 16)
    std::int32_t* sums_ = nullptr;  // (panels, 16)
    std::shared_ptr<std::byte> memory_;
};

}} // namespace kvcache
