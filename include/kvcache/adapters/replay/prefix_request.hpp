// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// A request of a recorded workload: a prompt as a chain of blocks of tokens.
struct prefix_request {
    double seconds = 0.0;                   ///< When it came, from the start of the trace.
    std::uint64_t input_tokens = 0;         ///< Of the prompt; the last block may be partial, or not recorded.
    std::uint64_t output_tokens = 0;        ///< Of the answer.
    std::uint32_t block_tokens = 0;         ///< Tokens of a whole block.
    std::vector<std::uint64_t> blocks = {}; ///< From the first. Each names all of the prompt up to its end.

    /// Tokens of the prompt in its first `count` blocks.
    [[nodiscard]] std::uint64_t tokens_in(std::size_t count) const noexcept {
        return std::min<std::uint64_t>(std::uint64_t{count} * block_tokens, input_tokens);
    }
};

/// The name of a block behind all that comes before it, so that equal names mean equal prefixes whether or not the
/// trace named its blocks so. The first block's parent is the name space: blocks of two of them are never the same.
[[nodiscard]] constexpr std::uint64_t chained_block(std::uint64_t parent, std::uint64_t block) noexcept {
    // splitmix64 over both: distinct inputs collide as seldom as random numbers of 64 bits.
    const auto mix = [](std::uint64_t x) {
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
        return x ^ (x >> 31);
    };
    return mix(parent + 0x9e3779b97f4a7c15ull * (mix(block + 0x9e3779b97f4a7c15ull) | 1));
}

} // namespace kvcache
