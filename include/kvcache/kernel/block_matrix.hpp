// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/kernel/block_format.hpp>
#include <kvcache/kernel/quant_block.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Adjacent outputs of a block_matrix with one format.
struct block_part {
    block_format format = block_format::q8_0;
    std::size_t outputs = 0;

    friend bool operator==(const block_part&, const block_part&) = default;
};

/// Some panels of one part: weights of the outputs [first, last), panel after panel.
struct block_strip {
    block_format format = block_format::q8_0;
    const std::byte* data = nullptr;
    std::size_t panel_bytes = 0;
    std::size_t panels = 0;
    std::size_t first = 0;
    std::size_t last = 0;

    [[nodiscard]] const std::byte* panel(std::size_t i) const noexcept { return data + i * panel_bytes; }
};

/// Weights of y = W x that stay in their quantised blocks, in about as many bytes as the file: nested scales become
/// bytes, which adds up to 4 %, to Q2_K 19 %. Packed in panels of 16 outputs (block_layout) that do not depend on the
/// processor; a panel has its blocks by ascending inputs. Parts, such as the queries, keys and values of an attention
/// layer, may differ in format; each begins a panel. It views packed bytes and keeps their owner alive.
class block_matrix {
public:
    static constexpr std::size_t panel_width = 16;

    block_matrix() = default;

    /// Views bytes_of() bytes that pack_panel() has packed, panel after panel. Requires: they begin on a cache line;
    /// `inputs` is whole blocks of every part.
    block_matrix(std::span<const block_part> parts, std::size_t inputs, std::shared_ptr<const std::byte> packed)
        : inputs_(inputs), packed_(std::move(packed)) {
        expects(reinterpret_cast<std::uintptr_t>(packed_.get()) % line_bytes == 0,
                "packed weights begin on a cache line");
        for (const block_part& part : parts) {
            expects(is_quantized(part.format) && inputs % shape_of(part.format).weights == 0,
                    "the rows of a block matrix are whole blocks");
            parts_.push_back({part, outputs_, bytes_});
            outputs_ += part.outputs;
            bytes_ += panels_of(part) * panel_bytes(part.format, inputs);
        }
    }

    /// Bytes of the packed weights.
    [[nodiscard]] static std::size_t bytes_of(std::span<const block_part> parts, std::size_t inputs) noexcept {
        std::size_t bytes = 0;
        for (const block_part& part : parts)
            bytes += panels_of(part) * panel_bytes(part.format, inputs);
        return bytes;
    }

    [[nodiscard]] std::size_t outputs() const noexcept { return outputs_; }
    [[nodiscard]] std::size_t inputs() const noexcept { return inputs_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
    [[nodiscard]] std::size_t parts() const noexcept { return parts_.size(); }
    [[nodiscard]] const block_part& part(std::size_t i) const noexcept { return parts_[i].of; }

    /// Number of strips of up to `wide` panels; a strip has panels of one part.
    [[nodiscard]] std::size_t strips(std::size_t wide) const noexcept {
        std::size_t all = 0;
        for (const placed& part : parts_)
            all += strips_of(part.of, wide);
        return all;
    }

    /// Strip `index` of up to `wide` panels. Requires: index < strips(wide).
    [[nodiscard]] block_strip strip(std::size_t index, std::size_t wide) const noexcept {
        auto part = parts_.begin();
        for (; index >= strips_of(part->of, wide); ++part)
            index -= strips_of(part->of, wide);
        const std::size_t bytes = panel_bytes(part->of.format, inputs_), panel = index * wide;
        const std::size_t last = std::min((panel + wide) * panel_width, part->of.outputs);
        return {.format = part->of.format,
                .data = packed_.get() + part->offset + panel * bytes,
                .panel_bytes = bytes,
                .panels = std::min(wide, panels_of(part->of) - panel),
                .first = part->first + panel * panel_width,
                .last = part->first + last};
    }

    /// Weights of one output, dequantised: the bits of dequantize(). (inputs)
    void row(std::size_t output, std::span<float> out) const {
        expects(output < outputs_ && out.size() == inputs_, "a packed row is one output's weights");
        const block_strip at = strip_with(output);
        const block_layout layout = layout_of(at.format);
        for (std::size_t k = 0; k < inputs_; k += layout.weights()) {
            const quant_block block =
                unpack_block(layout, at.data + k / layout.weights() * layout.packed_bytes(), output - at.first);
            for (std::size_t i = 0; i < layout.weights(); ++i)
                out[k + i] = block.weight(i);
        }
    }

private:
    struct placed {
        block_part of;
        std::size_t first;  // output
        std::size_t offset; // byte
    };

    [[nodiscard]] static std::size_t panels_of(const block_part& part) noexcept {
        return (part.outputs + panel_width - 1) / panel_width;
    }
    [[nodiscard]] static std::size_t strips_of(const block_part& part, std::size_t wide) noexcept {
        return (panels_of(part) + wide - 1) / wide;
    }
    [[nodiscard]] block_strip strip_with(std::size_t output) const noexcept {
        std::size_t before = 0;
        for (const placed& part : parts_) {
            if (output < part.first + part.of.outputs)
                return strip(before + (output - part.first) / panel_width, 1);
            before += panels_of(part.of);
        }
        return {};
    }

    std::vector<placed> parts_;
    std::size_t outputs_ = 0;
    std::size_t inputs_ = 0;
    std::size_t bytes_ = 0;
    std::shared_ptr<const std::byte> packed_;
};

}} // namespace kvcache
