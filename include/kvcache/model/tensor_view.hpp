// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/number_format.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/kernel/block_format.hpp>
#include <kvcache/kernel/quant_block.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Number formats of stored weights.
enum class dtype : std::uint8_t {
    f32,  ///< IEEE binary32.
    f16,  ///< IEEE binary16: 5 exponent bits, 10 fraction bits, subnormals.
    bf16, ///< The upper half of a binary32.
};

/// Bytes of one element.
[[nodiscard]] constexpr std::size_t bytes_of(dtype type) noexcept {
    return type == dtype::f32 ? 4 : 2;
}

/// Name as in checkpoints.
[[nodiscard]] constexpr std::string_view name_of(dtype type) noexcept {
    switch (type) {
    case dtype::f32:
        return "F32";
    case dtype::f16:
        return "F16";
    case dtype::bf16:
        return "BF16";
    }
    return "?";
}

/// Heads of q and k that checkpoints store in another order. Where RoPE rotates the first dimensions of a head only:
/// the reference transformer rotates dimension i with dimension i + head_dim / 2, so it has the first half of those
/// that are rotated at the begin of a head, the second half at head_dim / 2, and the others after them. Where a head is
/// stored with other parts of the same weight, as its gate: all heads, then all second parts, and so on.
struct head_layout {
    std::size_t rows = 0;                  ///< The first rows of a weight are in such heads; 0: none.
    std::size_t head_dim = 0;              ///< Rows of a head.
    std::size_t rotary = 0;                ///< Rows of a head that are rotated.
    std::array<std::size_t, 4> parts = {}; ///< Rows that are stored after one another for each head; none: the head.

    friend bool operator==(const head_layout&, const head_layout&) = default;

    /// Where a row is in the order of checkpoints.
    [[nodiscard]] std::size_t stored(std::size_t row) const noexcept {
        if (row >= rows)
            return row;
        if (parts[0] == 0)
            return row - row % head_dim + in_stored_head(row % head_dim);
        const std::size_t stride = parts[0] + parts[1] + parts[2] + parts[3], heads = rows / stride;
        std::size_t first = 0, before = 0; // rows of the parts before, of all heads and of one
        for (std::size_t part = 0;; ++part) {
            if (const std::size_t at = row - first; at < heads * parts[part]) {
                const std::size_t in_part = at % parts[part];
                return at / parts[part] * stride + before + (part == 0 ? in_stored_head(in_part) : in_part);
            }
            first += heads * parts[part];
            before += parts[part];
        }
    }

private:
    [[nodiscard]] std::size_t in_stored_head(std::size_t in_head) const noexcept {
        if (rotary == head_dim)
            return in_head;
        const std::size_t half = head_dim / 2, turned = rotary / 2, at = in_head % half, upper = in_head / half;
        return at < turned ? at + upper * turned : rotary + at - turned + upper * (half - turned);
    }
};

/// View of a stored weight, in little-endian bytes without alignment. The bytes belong to the checkpoint, unless it
/// stores the weight in another order.
///
/// Weights may be quantised in blocks; a row is whole blocks. The rows of a head may be stored interleaved, as GGUF
/// files of the llama architecture have them for q and k: row i + j * head_rows / 2 of a head (j is 0 or 1) is stored
/// as row 2 i + j of it. Every index is that of the weight as it is used, not as it is stored.
struct tensor_view {
    kvcache::dtype dtype = kvcache::dtype::f32; ///< Format of the numbers; F32 for blocks, which it reads as such.
    std::vector<std::size_t> shape = {};        ///< Outermost first, row-major.
    std::span<const std::byte> bytes = {};      ///< All of it, as stored: whole blocks, or bytes_of(dtype) an element.
    std::optional<block_format> blocks = std::nullopt;  ///< Format of quantised weights.
    std::size_t head_rows = 0;                          ///< Rows of a head that is stored interleaved; 0: none is.
    head_layout heads = {};                             ///< Heads that are stored in another order.
    std::shared_ptr<const std::byte[]> owned = nullptr; ///< Memory of the bytes, where they are not the checkpoint's.

    /// Number of elements.
    [[nodiscard]] std::size_t size() const noexcept {
        if (!blocks)
            return bytes.size() / bytes_of(dtype);
        return bytes.size() / shape_of(*blocks).bytes * shape_of(*blocks).weights;
    }

    /// Rows: the outermost extent. A vector has one element a row.
    [[nodiscard]] std::size_t rows() const noexcept { return shape.empty() ? 1 : shape[0]; }

    /// Where row `row` is stored: its number among the rows in `bytes`. Requires: row < rows().
    [[nodiscard]] std::size_t stored_row(std::size_t row) const noexcept {
        row = heads.stored(row);
        if (head_rows == 0)
            return row;
        const std::size_t half = head_rows / 2, in_head = row % head_rows;
        return row - in_head + 2 * (in_head % half) + in_head / half;
    }

    /// The bytes of row `row`, as stored: numbers or whole blocks. Requires: row < rows().
    [[nodiscard]] std::span<const std::byte> row(std::size_t row) const {
        expects(row < rows(), "a tensor view is read only inside its bytes");
        const std::size_t each = bytes.size() / rows();
        return bytes.subspan(stored_row(row) * each, each);
    }

    /// Element `index` in row-major order, exactly converted to float32. Requires: index < size().
    [[nodiscard]] float operator[](std::size_t index) const {
        float number = 0.0F;
        read(index, {&number, 1});
        return number;
    }

    /// The 16 bits of element `index`. Requires: index < size(), and a 16-bit format whose rows are in order.
    [[nodiscard]] std::uint16_t bits(std::size_t index) const {
        expects(index < size() && bytes_of(dtype) == 2 && head_rows == 0 && heads.rows == 0,
                "bits are read inside a view of 16-bit numbers");
        return static_cast<std::uint16_t>(halfword(index));
    }

    /// Fills `out` with the elements from `first` on, exactly converted to float32. Requires: first + out.size() <=
    /// size().
    void read(std::size_t first, std::span<float> out) const {
        expects(first <= size() && out.size() <= size() - first, "a tensor view is read only inside its bytes");
        if (head_rows == 0 && heads.rows == 0)
            return read_stored(first, out);
        const std::size_t width = size() / rows();
        while (!out.empty()) {
            const std::size_t column = first % width, n = std::min(out.size(), width - column);
            read_stored(stored_row(first / width) * width + column, out.first(n));
            first += n;
            out = out.subspan(n);
        }
    }

private:
    void read_stored(std::size_t first, std::span<float> out) const {
        if (blocks)
            return read_blocks(first, out);
        switch (dtype) {
        case kvcache::dtype::f32:
            return fill<kvcache::dtype::f32>(first, out);
        case kvcache::dtype::f16:
            return fill<kvcache::dtype::f16>(first, out);
        case kvcache::dtype::bf16:
            return fill<kvcache::dtype::bf16>(first, out);
        }
    }

    void read_blocks(std::size_t first, std::span<float> out) const {
        const auto [weights, size] = shape_of(*blocks);
        std::array<float, 256> part; // of a block that is read in part
        while (!out.empty()) {
            const std::size_t skipped = first % weights, begin = first / weights * size;
            std::size_t n = out.size() / weights * weights;
            if (skipped == 0 && n != 0) {
                dequantize(*blocks, bytes.subspan(begin, n / weights * size), out.first(n));
            } else {
                n = std::min(out.size(), weights - skipped);
                dequantize(*blocks, bytes.subspan(begin, size), std::span(part).first(weights));
                std::copy_n(part.begin() + static_cast<std::ptrdiff_t>(skipped), n, out.begin());
            }
            first += n;
            out = out.subspan(n);
        }
    }

    template <kvcache::dtype Type>
    void fill(std::size_t first, std::span<float> out) const {
        for (std::size_t i = 0; i != out.size(); ++i)
            out[i] = number<Type>(first + i);
    }

    template <kvcache::dtype Type>
    [[nodiscard]] float number(std::size_t index) const {
        if constexpr (Type == kvcache::dtype::f32)
            return bit_cast<float>(halfword(index * 2) | halfword(index * 2 + 1) << 16);
        else if constexpr (Type == kvcache::dtype::f16)
            return widen(half{static_cast<std::uint16_t>(halfword(index))});
        else
            return widen(bfloat16{static_cast<std::uint16_t>(halfword(index))});
    }

    // Bytes 2 n and 2 n + 1, combined by arithmetic, so that neither alignment nor the machine's byte order matters.
    [[nodiscard]] std::uint32_t halfword(std::size_t n) const {
        return std::to_integer<std::uint32_t>(bytes[2 * n]) | std::to_integer<std::uint32_t>(bytes[2 * n + 1]) << 8;
    }
};

}} // namespace kvcache
