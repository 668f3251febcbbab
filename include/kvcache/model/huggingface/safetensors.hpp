// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/file.hpp>
#include <kvcache/model/huggingface/safetensors_header.hpp>
#include <kvcache/model/tensor_view.hpp>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A safetensors file, mapped read-only, with a checked header.
class safetensors_file {
public:
    /// Maps `file` and checks its header. Errors: those of mapped_file::open and safetensors_header::parse. Cost: reads
    /// the header, no weights.
    KVCACHE_ONCE [[nodiscard]] static result<safetensors_file> open(const std::filesystem::path& file);

    [[nodiscard]] const mapped_file& file() const noexcept { return file_; }
    [[nodiscard]] const safetensors_header& header() const noexcept { return header_; }

    /// Bytes of an entry of header(), whatever its dtype.
    [[nodiscard]] std::span<const std::byte> bytes(const safetensors_entry& entry) const {
        return file_.bytes().subspan(header_.buffer + entry.begin, entry.end - entry.begin);
    }

    /// Returns the tensor `name`. It must have the shape `expected` and a supported weight dtype. Errors: not_found;
    /// mismatched, for the shape; unsupported, for the dtype; truncated, when the file shrank.
    KVCACHE_ONCE [[nodiscard]] result<tensor_view> tensor(std::string_view name,
                                                          std::span<const std::size_t> expected) const;

private:
    safetensors_file(mapped_file file, safetensors_header header)
        : file_(std::move(file)), header_(std::move(header)) {}

    mapped_file file_;
    safetensors_header header_;
};

}} // namespace kvcache

#if !KVCACHE_COMPILED
#include <kvcache/model/huggingface/impl/safetensors.hpp>
#endif
