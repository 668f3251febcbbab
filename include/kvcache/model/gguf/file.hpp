// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/mapped_file.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/formats/gguf_header.hpp>
#include <kvcache/kernel/block_format.hpp>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Place of a tensor's data in a GGUF file.
struct gguf_entry {
    std::string_view name = {};          ///< Viewed in the file.
    std::vector<std::size_t> shape = {}; ///< Outermost first.
    block_format format = block_format::f32;
    std::span<const std::byte> bytes = {}; ///< Whole rows of whole blocks, viewed in the file.
};

/// A GGUF file, mapped read-only, with a checked header and checked places of its tensors. Movable; what it gives out
/// views the mapping, which a move does not relocate.
class gguf_file {
public:
    /// Maps `file` and checks it. Errors: those of mapped_file::open, gguf_header::parse and entries(). Cost: reads the
    /// header, no weights.
    KVCACHE_ONCE [[nodiscard]] static result<gguf_file> open(const std::filesystem::path& file);

    /// Places of the tensors of `header`, which was parsed from `file`; `name` is its name in errors. Errors:
    /// unsupported, for a type that is not one of block_formats; malformed, for a row that is not whole blocks or data
    /// that overlaps another tensor's; truncated, for data after the end of the file. The error names the tensor.
    KVCACHE_ONCE [[nodiscard]] static result<std::vector<gguf_entry>>
    entries(const gguf_header& header, std::span<const std::byte> file, const std::string& name);

    [[nodiscard]] const mapped_file& file() const noexcept { return file_; }
    [[nodiscard]] const gguf_header& header() const noexcept { return header_; }
    /// In the order of the file.
    [[nodiscard]] std::span<const gguf_entry> entries() const noexcept { return entries_; }

private:
    gguf_file(mapped_file file, gguf_header header, std::vector<gguf_entry> entries)
        : file_(std::move(file)), header_(std::move(header)), entries_(std::move(entries)) {}

    mapped_file file_;
    gguf_header header_;
    std::vector<gguf_entry> entries_;
};

}} // namespace kvcache

#if !KVCACHE_COMPILED
#include <kvcache/model/gguf/impl/file.hpp>
#endif
