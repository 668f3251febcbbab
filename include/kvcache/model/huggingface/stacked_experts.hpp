// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/model/tensor_view.hpp>

#include <charconv>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Where a checkpoint that stacks the experts of a layer has a weight of one: gate and up in one tensor,
/// (experts, 2 size, hidden) with the rows of up after those of gate, and down, (experts, hidden, size); or transposed
/// (gpt-oss), (experts, hidden, 2 size) with a column of each in turn, and (experts, size, hidden), and biases
/// likewise, without the second extent.
struct stacked_expert {
    std::string name = {}; ///< Of the tensor of all experts.
    std::size_t expert = 0;
    std::size_t first = 0; ///< Column, or number of a bias.
    std::size_t step = 1;  ///< To the next one.
    bool transposed = true;

    /// Of "model.layers.3.mlp.experts.5.gate_proj.weight". Returns nullopt for another name.
    KVCACHE_LAZY [[nodiscard]] static std::optional<stacked_expert> of(std::string_view name) {
        constexpr std::string_view experts = ".experts.";
        const std::size_t at = name.find(experts);
        if (at == name.npos)
            return std::nullopt;
        const char* const digits = name.data() + at + experts.size();
        stacked_expert made;
        const auto read = std::from_chars(digits, name.data() + name.size(), made.expert);
        if (read.ec != std::errc())
            return std::nullopt;
        const std::string_view part = name.substr(static_cast<std::size_t>(read.ptr - name.data()));
        const std::string before(name.substr(0, at + experts.size()));
        if (constexpr std::string_view granite = "block_sparse_moe.experts."; before.ends_with(granite)) {
            const bool down = part.starts_with(".down_proj.");
            if (!down && !part.starts_with(".gate_proj.") && !part.starts_with(".up_proj."))
                return std::nullopt;
            made.name = before.substr(0, before.size() - (experts.size() - 1)) +
                        (down ? "output_linear.weight" : "input_linear.weight");
            if (!down)
                made.first = part.starts_with(".up_proj.") ? 1 : 0, made.step = 2;
            return made;
        }
        const bool bias = part.ends_with(".bias");
        if (part.starts_with(".down_proj."))
            made.name = before + (bias ? "down_proj_bias" : "down_proj");
        else if (part.starts_with(".gate_proj.") || part.starts_with(".up_proj."))
            made.name = before + (bias ? "gate_up_proj_bias" : "gate_up_proj");
        else
            return std::nullopt;
        if (!part.starts_with(".down_proj."))
            made.first = part.starts_with(".up_proj.") ? 1 : 0, made.step = 2;
        return made;
    }

    /// Shape of the tensor of `experts` experts, for a weight of one with this shape.
    KVCACHE_LAZY [[nodiscard]] std::vector<std::size_t> stacked_shape(std::size_t experts,
                                                                      std::span<const std::size_t> shape) const {
        if (shape.size() == 1)
            return {experts, step * shape[0]};
        if (!transposed)
            return {experts, step * shape[0], shape[1]};
        return {experts, shape[1], step * shape[0]};
    }

    /// The weight in two tensors of all experts in MXFP4 (OCP Microscaling 1.0): blocks, (experts, rows, blocks of a
    /// row, 16) bytes with two numbers each, in order, and scales without the last extent. Copied: block formats have
    /// the scale before the numbers, and in a byte one of the first half of the block and one of the second. Requires:
    /// the tensors have such shapes.
    KVCACHE_LAZY [[nodiscard]] tensor_view in_mxfp4(std::span<const std::byte> blocks,
                                                    std::span<const std::byte> scales,
                                                    std::span<const std::size_t> shape) const {
        constexpr std::size_t bytes = 16, block = 1 + bytes;
        const std::size_t rows = shape[0], width = shape[1] / (2 * bytes), size = rows * width * block;
        const std::shared_ptr<std::byte[]> made(new std::byte[size]);
        for (std::size_t i = 0; i < rows * width; ++i) {
            const std::size_t at = ((expert * rows + i / width) * step + first) * width + i % width;
            const std::byte *const from = blocks.data() + at * bytes, *const to_end = made.get() + (i + 1) * block;
            std::byte* to = made.get() + i * block;
            *to++ = scales[at];
            for (std::size_t j = 0; to != to_end; ++to, ++j) {
                const auto number = [&](std::size_t n) { return from[n / 2] >> (n % 2 * 4) & std::byte{15}; };
                *to = number(j) | number(j + bytes) << 4;
            }
        }
        return {.shape = {shape.begin(), shape.end()},
                .bytes = {made.get(), size},
                .blocks = block_format::mxfp4,
                .owned = made};
    }

    /// The weight in the tensor of all experts, copied if they are transposed. Requires: that has the stacked shape.
    KVCACHE_LAZY [[nodiscard]] tensor_view in(const tensor_view& all, std::span<const std::size_t> shape) const {
        const std::size_t rows = shape[0], columns = shape.size() == 1 ? 1 : shape[1], width = bytes_of(all.dtype);
        const std::size_t size = rows * columns * width;
        if (!transposed)
            return {.dtype = all.dtype,
                    .shape = {shape.begin(), shape.end()},
                    .bytes = all.bytes.subspan((expert * step + first) * size, size)};
        const std::shared_ptr<std::byte[]> made(new std::byte[size]);
        const std::byte* const from = all.bytes.data() + expert * columns * rows * step * width;
        for (std::size_t row = 0; row < rows; ++row)
            for (std::size_t column = 0; column < columns; ++column)
                std::memcpy(made.get() + (row * columns + column) * width,
                            from + (column * rows * step + row * step + first) * width, width);
        return {.dtype = all.dtype, .shape = {shape.begin(), shape.end()}, .bytes = {made.get(), size}, .owned = made};
    }
};

}}} // namespace kvcache::detail
