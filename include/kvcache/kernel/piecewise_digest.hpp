// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest.hpp>
#include <kvcache/kernel/team.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// XXH3-128 over the length of the bytes and the XXH3-128 of each mebibyte of them, so that threads can share it. The
/// digest does not depend on how many there are. Cost: reads the bytes once.
[[nodiscard]] inline digest piecewise_digest(std::span<const std::byte> bytes, team& threads) {
    constexpr std::size_t piece = std::size_t{1} << 20;
    std::vector<digest> pieces((bytes.size() + piece - 1) / piece);
    threads.share(pieces.size(), bytes.size(), [&](std::size_t begin, std::size_t end) {
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

} // namespace kvcache
