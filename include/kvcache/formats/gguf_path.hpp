// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>

#include <filesystem>
#include <system_error>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Returns whether the path of a model is that of a GGUF file, rather than of a directory: a file, or nothing that is
/// there but is named like one.
KVCACHE_LAZY [[nodiscard]] inline bool is_gguf_path(const std::filesystem::path& model) {
    std::error_code ignored;
    const auto kind = std::filesystem::status(model, ignored).type();
    return kind == std::filesystem::file_type::regular ||
           (kind != std::filesystem::file_type::directory && model.extension() == ".gguf");
}

}}} // namespace kvcache::detail
