// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/file.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/model/huggingface/json.hpp>
#include <kvcache/model/huggingface/safetensors.hpp>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

/// Formats a shape for errors: "(2, 3)".
KVCACHE_LAZY [[nodiscard]] inline std::string shape_text(std::span<const std::size_t> shape) {
    std::string text = "(";
    for (std::size_t i = 0; i != shape.size() && i != 8; ++i)
        text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
    return text + (shape.size() > 8 ? ", ...)" : ")");
}

/// Returns the weight dtype with this name.
KVCACHE_LAZY [[nodiscard]] inline std::optional<dtype> weight_dtype(std::string_view spelled) noexcept {
    for (const dtype type : {dtype::f32, dtype::f16, dtype::bf16})
        if (name_of(type) == spelled)
            return type;
    return std::nullopt;
}

} // namespace detail

KVCACHE_BODY result<safetensors_file> safetensors_file::open(const std::filesystem::path& file) {
    auto mapped = mapped_file::open(file);
    if (!mapped)
        return mapped.error();
    auto header = safetensors_header::parse(mapped->bytes(), file.filename().string());
    if (!header)
        return header.error();
    return safetensors_file(*std::move(mapped), *std::move(header));
}

KVCACHE_BODY result<tensor_view> safetensors_file::tensor(std::string_view name,
                                                          std::span<const std::size_t> expected) const {
    const auto refuse = [&](error_code code, const std::string& field, const std::string& what) {
        return error{code, field, detail::joined({file_.name(), ": ", field, ": ", what})};
    };
    const auto at = header_.entries.find(name);
    if (at == header_.entries.end())
        return refuse(error_code::not_found, detail::shown(name), "the tensor is not in the file");
    const safetensors_entry& entry = at->second;
    const auto type = detail::weight_dtype(entry.dtype);
    if (!type)
        return refuse(error_code::unsupported, detail::shown(name) + ".dtype",
                      detail::joined({entry.dtype, " weights are not read; F32, F16 and BF16 are"}));
    if (!ranges::equal(entry.shape, expected))
        return refuse(error_code::mismatched, detail::shown(name) + ".shape",
                      detail::joined({"it is ", detail::shape_text(entry.shape), "; the configuration needs ",
                                      detail::shape_text(expected)}));
    if (auto whole = file_.intact(); !whole)
        return whole.error();
    return tensor_view{.dtype = *type, .shape = entry.shape, .bytes = bytes(entry)};
}

}} // namespace kvcache
