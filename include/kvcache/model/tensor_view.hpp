// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/core/number_format.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

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

/// View of a stored weight, in little-endian bytes without alignment. It owns only its shape; the bytes belong to the
/// checkpoint.
struct tensor_view {
    kvcache::dtype dtype = kvcache::dtype::f32;
    std::vector<std::size_t> shape = {};   ///< Outermost first, row-major.
    std::span<const std::byte> bytes = {}; ///< bytes_of(dtype) times the product of the shape.

    /// Number of elements.
    [[nodiscard]] std::size_t size() const noexcept { return bytes.size() / bytes_of(dtype); }

    /// Element `index` in row-major order, exactly converted to float32. Requires: index < size().
    [[nodiscard]] float operator[](std::size_t index) const {
        expects(index < size(), "a tensor view is read only inside its bytes");
        switch (dtype) {
        case kvcache::dtype::f32:
            return number<kvcache::dtype::f32>(index);
        case kvcache::dtype::f16:
            return number<kvcache::dtype::f16>(index);
        case kvcache::dtype::bf16:
            return number<kvcache::dtype::bf16>(index);
        }
        return 0.0F;
    }

    /// The 16 bits of element `index`. Requires: index < size(), and a 16-bit format.
    [[nodiscard]] std::uint16_t bits(std::size_t index) const {
        expects(index < size() && bytes_of(dtype) == 2, "bits are read inside a view of 16-bit numbers");
        return static_cast<std::uint16_t>(halfword(index));
    }

    /// Fills `out` with the elements from `first` on, exactly converted to float32. Requires: first + out.size() <=
    /// size().
    void read(std::size_t first, std::span<float> out) const {
        expects(first <= size() && out.size() <= size() - first, "a tensor view is read only inside its bytes");
        switch (dtype) {
        case kvcache::dtype::f32:
            return fill<kvcache::dtype::f32>(first, out);
        case kvcache::dtype::f16:
            return fill<kvcache::dtype::f16>(first, out);
        case kvcache::dtype::bf16:
            return fill<kvcache::dtype::bf16>(first, out);
        }
    }

private:
    template <kvcache::dtype Type>
    [[nodiscard]] float number(std::size_t index) const {
        if constexpr (Type == kvcache::dtype::f32)
            return std::bit_cast<float>(halfword(index * 2) | halfword(index * 2 + 1) << 16);
        else if constexpr (Type == kvcache::dtype::f16)
            return widen(half{static_cast<std::uint16_t>(halfword(index))});
        else
            return widen(bfloat16{static_cast<std::uint16_t>(halfword(index))});
    }

    template <kvcache::dtype Type>
    void fill(std::size_t first, std::span<float> out) const {
        for (std::size_t i = 0; i != out.size(); ++i)
            out[i] = number<Type>(first + i);
    }

    // Bytes 2 n and 2 n + 1, combined by arithmetic, so that neither alignment nor the machine's byte order matters.
    [[nodiscard]] std::uint32_t halfword(std::size_t n) const {
        return std::to_integer<std::uint32_t>(bytes[2 * n]) | std::to_integer<std::uint32_t>(bytes[2 * n + 1]) << 8;
    }
};

} // namespace kvcache
