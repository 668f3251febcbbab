// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>

#include <array>
#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Entry of one tensor in a safetensors header.
struct safetensors_entry {
    std::string dtype = {};              ///< As spelled in the file: "F32", "BF16", "I64".
    std::vector<std::size_t> shape = {}; ///< Outermost first.
    std::size_t begin = 0;               ///< First byte, relative to the start of the buffer.
    std::size_t end = 0;                 ///< One past the last byte.
};

namespace detail {

/// Bits of one element; none for an unknown dtype.
[[nodiscard]] constexpr std::optional<std::size_t> safetensors_bits(std::string_view dtype) noexcept {
    constexpr std::array<std::pair<std::string_view, std::size_t>, 22> known = {{
        {"F32", 32},    {"F16", 16},    {"BF16", 16},       {"F64", 64},    {"I64", 64}, {"I32", 32},
        {"I16", 16},    {"I8", 8},      {"U64", 64},        {"U32", 32},    {"U16", 16}, {"U8", 8},
        {"BOOL", 8},    {"F8_E4M3", 8}, {"F8_E5M2", 8},     {"F8_E8M0", 8}, {"C64", 64}, {"F8_E4M3FNUZ", 8},
        {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F8_E5M2FNUZ", 8}, {"F4", 4},
    }};
    for (const auto& [name, bits] : known)
        if (name == dtype)
            return bits;
    return std::nullopt;
}

/// Bytes of a tensor with this dtype and shape; none if the size overflows or ends inside a byte.
KVCACHE_LAZY [[nodiscard]] inline std::optional<std::size_t> safetensors_bytes(const safetensors_entry& entry) {
    // Even if an extent is zero, the product of the others must not overflow, since callers may multiply in another
    // order.
    std::size_t product = safetensors_bits(entry.dtype).value_or(0);
    bool empty = false;
    for (const std::size_t extent : entry.shape) {
        if (extent == 0) {
            empty = true;
            continue;
        }
        if (product > std::numeric_limits<std::size_t>::max() / extent)
            return std::nullopt;
        product *= extent;
    }
    if (product % 8 != 0 && !empty)
        return std::nullopt;
    return empty ? 0 : product / 8;
}

} // namespace detail

/// A checked safetensors header: every entry lies inside the buffer and has the size that its shape and dtype require,
/// and the entries cover the buffer without holes or overlaps.
///
///     file  [ header length: 8 bytes, little-endian ][ header: JSON, padded with spaces ][ buffer ]
struct safetensors_header {
    std::size_t buffer = 0; ///< Offset of the buffer in the file.
    std::map<std::string, safetensors_entry, std::less<>> entries = {};
    std::map<std::string, std::string, std::less<>> metadata = {};

    /// Maximum header length, as in the format's reference implementation.
    static constexpr std::size_t limit = 100'000'000;

    /// Parses and checks the header of a whole file's bytes, without reading the buffer. `name` is the file's name in
    /// errors. Errors: truncated; malformed; unsupported, for an unknown dtype. The field is "<tensor>.data_offsets",
    /// "<tensor>.dtype", "header length" or similar. Cost: O(h + n log n) for h header bytes and n tensors.
    KVCACHE_ONCE [[nodiscard]] static result<safetensors_header> parse(std::span<const std::byte> file,
                                                                       const std::string& name);
};

}} // namespace kvcache

#if !KVCACHE_COMPILED
#include <kvcache/model/huggingface/impl/safetensors_header.hpp>
#endif
