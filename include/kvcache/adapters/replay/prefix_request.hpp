// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A request of a recorded workload: a prompt as a chain of token blocks.
struct prefix_request {
    double seconds = 0.0;                   ///< Time of arrival, from the start of the trace.
    std::uint64_t input_tokens = 0;         ///< Tokens of the prompt; the last block may be partial, or not recorded.
    std::uint64_t output_tokens = 0;        ///< Tokens of the answer.
    std::uint32_t block_tokens = 0;         ///< Tokens of a full block.
    std::vector<std::uint64_t> blocks = {}; ///< Block names in order; each names the prompt up to its end.

    /// Returns the number of prompt tokens in its first `count` blocks.
    [[nodiscard]] std::uint64_t tokens_in(std::size_t count) const noexcept {
        return std::min<std::uint64_t>(std::uint64_t{count} * block_tokens, input_tokens);
    }
};

/// Returns the name of a block after all blocks before it. Equal names mean equal prefixes, even if the trace's own
/// block ids do not. The parent of the first block is the name space; blocks of different name spaces have different
/// names.
[[nodiscard]] constexpr std::uint64_t chained_block(std::uint64_t parent, std::uint64_t block) noexcept {
    // splitmix64 over both: distinct inputs collide as rarely as random 64-bit numbers.
    const auto mix = [](std::uint64_t x) {
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
        return x ^ (x >> 31);
    };
    return mix(parent + 0x9e3779b97f4a7c15ull * (mix(block + 0x9e3779b97f4a7c15ull) | 1));
}

}} // namespace kvcache
