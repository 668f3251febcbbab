// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/adapters/replay/prefix_request.hpp>
#include <kvcache/adapters/replay/replay_counts.hpp>

#include <cstddef>
#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The work of a prefill, in units of the projections of one token. The projections of a token cost the same at every
/// position; its attention reads everything before it and adds position / crossover. A hit on a block whose parent is
/// present saves the work of its tokens: a constant part, and a part linear in its depth.
struct prefill_work {
    /// The position at which attention costs as much as the projections. With P weights and a query width d per
    /// layer, the projections take 2 P operations and attention 4 d per position, so it is P / (2 d). The default is
    /// Llama 3.1 8B: P = 218 M, d = 4096.
    double crossover = 26624.0;

    /// Returns the work of a prompt's first `tokens` tokens.
    [[nodiscard]] constexpr double up_to(std::uint64_t tokens) const noexcept {
        const auto n = static_cast<double>(tokens);
        return n + n * (n + 1.0) / (2.0 * crossover); // positions count from 1: a token attends to itself
    }

    /// Returns the work that a hit on block `depth` of the request saves, if the blocks before it are present.
    [[nodiscard]] double of_block(const prefix_request& request, std::size_t depth) const noexcept {
        return up_to(request.tokens_in(depth + 1)) - up_to(request.tokens_in(depth));
    }

    /// Adds a request whose first `hits` blocks were present.
    void count(replay_counts& counts, const prefix_request& request, std::size_t hits) const noexcept {
        ++counts.requests;
        counts.accesses += request.blocks.size();
        counts.hits += hits;
        counts.tokens += request.input_tokens;
        counts.hit_tokens += request.tokens_in(hits);
        counts.work += up_to(request.input_tokens);
        counts.saved_work += up_to(request.tokens_in(hits));
    }
};

}} // namespace kvcache
