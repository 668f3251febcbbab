// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/kernel/thread_pool.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Tree hash: XXH3-128 over the length and the XXH3-128 of each mebibyte, so that threads can share the work. The
/// digest does not depend on the number of threads. Cost: reads the bytes once.
[[nodiscard]] inline digest tree_hash(std::span<const std::byte> bytes, thread_pool& threads) {
    constexpr std::size_t piece = std::size_t{1} << 20;
    std::vector<digest> pieces((bytes.size() + piece - 1) / piece);
    threads.parallel_for(pieces.size(), bytes.size(), [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i)
            pieces[i] =
                digest_builder().bytes(bytes.subspan(i * piece, std::min(piece, bytes.size() - i * piece))).finish();
    });
    digest_builder whole;
    whole.text("kvcache pieces 1").number(bytes.size());
    for (const digest& one : pieces)
        whole.nested(one);
    return whole.finish();
}

namespace detail {

// Operations on the mapped files of a checkpoint together, whatever their format. A `Files` is a range of objects whose
// file() is a mapped_file.

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

} // namespace detail

}} // namespace kvcache
