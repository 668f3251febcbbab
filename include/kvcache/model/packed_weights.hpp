// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/kernel/block_matrix.hpp>
#include <kvcache/kernel/gemm_packing.hpp>
#include <kvcache/kernel/quant_block.hpp>
#include <kvcache/kernel/thread_pool.hpp>
#include <kvcache/model/tensor_view.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Format of packed matrices that are concatenated along the outputs: one format of numbers, or quantised blocks, whose
/// format may differ from part to part.
struct matrix_format {
    dtype numbers = dtype::f32;
    std::vector<block_part> blocks = {}; ///< Empty for numbers.

    matrix_format() = default;
    matrix_format(dtype type) : numbers(type) {}
    explicit matrix_format(std::vector<block_part> parts) : blocks(std::move(parts)) {}

    friend bool operator==(const matrix_format&, const matrix_format&) = default;
};

/// Packed format of matrices: their own blocks if all are quantised; their own numbers if they all share a format; else
/// F32. Also F32 on a big-endian machine, since checkpoints are little-endian.
[[nodiscard]] inline matrix_format packed_format(std::span<const tensor_view> parts) {
    if (parts.empty() || std::endian::native != std::endian::little)
        return dtype::f32;
    if (ranges::all_of(parts, [](const tensor_view& p) { return p.blocks.has_value(); })) {
        std::vector<block_part> blocks;
        for (const tensor_view& part : parts)
            if (!blocks.empty() && blocks.back().format == *part.blocks)
                blocks.back().outputs += part.shape[0];
            else
                blocks.push_back({*part.blocks, part.shape[0]});
        return matrix_format(std::move(blocks));
    }
    const bool alike =
        ranges::all_of(parts, [&](const tensor_view& p) { return p.dtype == parts[0].dtype && !p.blocks.has_value(); });
    return alike ? parts[0].dtype : dtype::f32;
}

/// Bytes of packed weights.
[[nodiscard]] inline std::size_t packed_bytes(const matrix_format& format, std::size_t outputs,
                                              std::size_t inputs) noexcept {
    if (!format.blocks.empty())
        return block_matrix::bytes_of(format.blocks, inputs);
    constexpr std::size_t width = packed_matrix<float>::panel_width;
    return packed_matrix<float>::panels_of(outputs) * width * inputs * bytes_of(format.numbers);
}

namespace detail {

/// First byte of a row in concatenated matrices; null past the last row.
[[nodiscard]] inline const std::byte* row_in(std::span<const tensor_view> parts, std::size_t row) {
    for (const tensor_view& part : parts) {
        if (row < part.shape[0])
            return part.row(row).data();
        row -= part.shape[0];
    }
    return nullptr;
}

/// The same row as float32. (inputs)
inline void read_row_in(std::span<const tensor_view> parts, std::size_t row, std::span<float> out) {
    for (const tensor_view& part : parts) {
        if (row < part.shape[0])
            return part.read(row * out.size(), out);
        row -= part.shape[0];
    }
    ranges::fill(out, 0.0F);
}

template <weight_format Weight>
inline void pack_as(std::span<const tensor_view> parts, std::size_t outputs, bool as_stored, Weight* to,
                    std::size_t begin, std::size_t end) {
    using matrix = packed_matrix<Weight>;
    const std::size_t inputs = parts[0].shape[1];
    std::vector<float> widened(as_stored ? 0 : matrix::strip_width * inputs);
    std::array<const std::byte*, matrix::strip_width> rows = {};
    for (std::size_t strip = begin; strip < end; ++strip) {
        const std::size_t first = strip * matrix::strip_width, width = matrix::width_of(outputs, strip);
        for (std::size_t r = 0; r < width; ++r)
            if (as_stored) {
                rows[r] = row_in(parts, first + r);
            } else {
                const std::span row(widened.data() + r * inputs, inputs);
                read_row_in(parts, first + r, row);
                rows[r] = std::as_bytes(row).data();
            }
        pack_b<Weight>(std::span(rows).first(width), inputs, to + first * inputs);
    }
}

/// Packs the rows of a part, from `row` on, into its panels at `to`.
inline void pack_blocks(std::span<const tensor_view> parts, std::size_t row, const block_part& part, std::byte* to,
                        thread_pool& threads) {
    const std::size_t inputs = parts[0].shape[1], bytes = panel_bytes(part.format, inputs);
    threads.parallel_for((part.outputs + 15) / 16, part.outputs * inputs, [&](std::size_t begin, std::size_t end) {
        for (std::size_t panel = begin; panel < end; ++panel) {
            std::array<const std::byte*, 16> rows = {};
            for (std::size_t r = 0; r < std::min<std::size_t>(16, part.outputs - panel * 16); ++r)
                rows[r] = row_in(parts, row + panel * 16 + r);
            pack_panel(part.format, rows, inputs, to + panel * bytes);
        }
    });
}

} // namespace detail

/// Packs matrices with the same number of inputs, concatenated along the outputs, into `to`: packed_bytes() of memory
/// on a cache line. Each is (outputs, inputs), as stored. Requires: `format` is packed_format(parts), or F32. Cost:
/// reads and writes every weight once, with all threads.
inline void pack_rows(std::span<const tensor_view> parts, const matrix_format& format, std::byte* to,
                      thread_pool& threads) {
    expects(!parts.empty(), "a linear map has a matrix");
    std::size_t outputs = 0;
    for (const tensor_view& part : parts) {
        expects(part.shape.size() == 2 && part.shape[1] == parts[0].shape[1], "matrices below one another are as wide");
        outputs += part.shape[0];
    }
    if (!format.blocks.empty()) {
        expects(format == packed_format(parts), "blocks are packed as stored");
        std::size_t row = 0;
        for (const block_part& part : format.blocks) {
            detail::pack_blocks(parts, row, part, to, threads);
            row += part.outputs;
            to += block_matrix::bytes_of({&part, 1}, parts[0].shape[1]);
        }
        return;
    }
    // Bytes are copied as they are; only a big-endian machine has to convert the values.
    const bool as_stored =
        std::endian::native == std::endian::little &&
        ranges::all_of(parts, [&](const tensor_view& part) { return part.dtype == format.numbers && !part.blocks; });
    expects(as_stored || format.numbers == dtype::f32, "weights are packed as stored or as F32");
    const auto pack = [&](auto* weights) {
        threads.parallel_for(packed_matrix<float>::strips_of(outputs), outputs * parts[0].shape[1],
                             [&](std::size_t begin, std::size_t end) {
                                 detail::pack_as(parts, outputs, as_stored, weights, begin, end);
                             });
    };
    switch (format.numbers) {
    case dtype::f32:
        return pack(reinterpret_cast<float*>(to));
    case dtype::f16:
        return pack(reinterpret_cast<half*>(to));
    case dtype::bf16:
        return pack(reinterpret_cast<bfloat16*>(to));
    }
}

}} // namespace kvcache
