// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest.hpp>
#include <kvcache/kernel/thread_pool.hpp>

#include <algorithm>
#include <cstddef>
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

}} // namespace kvcache
