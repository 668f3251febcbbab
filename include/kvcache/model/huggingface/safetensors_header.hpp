// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/model/huggingface/safetensors_entry.hpp>

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>

namespace kvcache { inline namespace KVCACHE_ABI {

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
