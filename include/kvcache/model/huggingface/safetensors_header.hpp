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

namespace kvcache::inline KVCACHE_ABI {

/// A checked safetensors header: every entry lies inside the buffer, has the bytes that its shape and dtype need, and
/// together they cover the buffer without holes or overlaps.
///
///     file  [ header length: 8 bytes, little-endian ][ header: JSON, padded with spaces ][ buffer ]
struct safetensors_header {
    std::size_t buffer = 0; ///< Where the buffer starts in the file.
    std::map<std::string, safetensors_entry, std::less<>> entries = {};
    std::map<std::string, std::string, std::less<>> metadata = {};

    /// The longest header read, as in the format's own implementation.
    static constexpr std::size_t limit = 100'000'000;

    /// Parses and checks the header of a whole file's bytes; reads none of the buffer. `name` is what errors call it.
    /// Errors: truncated; malformed; unsupported, for a dtype the format does not name. The field is
    /// "<tensor>.data_offsets", "<tensor>.dtype", "header length" and the like.
    /// Cost: O(h + n log n) for h header bytes and n tensors.
    KVCACHE_ONCE [[nodiscard]] static result<safetensors_header> parse(std::span<const std::byte> file,
                                                                       const std::string& name);
};

} // namespace kvcache

#if !KVCACHE_COMPILED
#include <kvcache/model/huggingface/impl/safetensors_header.hpp>
#endif
