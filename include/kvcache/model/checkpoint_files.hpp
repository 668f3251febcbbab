// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/digest.hpp>

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>

/// What the mapped files of a checkpoint do together, whatever their format. A `Files` is a range of objects whose
/// file() is a mapped_file.
namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Digest of the files' metadata (mapped_file::description()); none if it is unknown for a file. Cost: reads no
/// weights.
template <class Files>
[[nodiscard]] std::optional<digest> description_of(const Files& files, std::chrono::system_clock::time_point now) {
    digest_builder builder;
    builder.text("kvcache files 1").number(files.size());
    for (const auto& each : files) {
        const auto described = each.file().description(now);
        if (!described)
            return std::nullopt;
        builder.nested(*described);
    }
    return builder.finish();
}

/// Starts reading all files from the disk; returns at once.
template <class Files>
void read_ahead(const Files& files) noexcept {
    for (const auto& each : files)
        each.file().read_ahead();
}

/// Drops the pages of `bytes`, a part of one of the files, from this process's memory: mapped_file::forget().
template <class Files>
void forget(const Files& files, std::span<const std::byte> bytes) noexcept {
    for (const auto& each : files) {
        const std::span<const std::byte> all = each.file().bytes();
        if (!std::less<>()(bytes.data(), all.data()) && std::less<>()(bytes.data(), all.data() + all.size()))
            each.file().forget(bytes);
    }
}

}}} // namespace kvcache::detail
