// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/id.hpp>

#include <cstddef>
#include <span>

namespace kvcache {

/// Which rows of a part want logits.
enum class logits_of { none, last, all };

/// Consecutive rows of one sequence in a batch: tokens that run at the lease's rows [row, row + tokens.size()).
template <class Lease>
struct batch_part {
    const Lease* lease = nullptr;
    std::size_t row = 0;
    std::span<const token_id> tokens = {};
    logits_of wanted = logits_of::last;

    /// The position of its token `i`.
    [[nodiscard]] std::size_t position(std::size_t i) const { return lease->first() + row + i; }

    /// How many of its last rows want logits.
    [[nodiscard]] std::size_t wanted_rows() const noexcept {
        return wanted == logits_of::all ? tokens.size() : wanted == logits_of::last && !tokens.empty() ? 1 : 0;
    }
};

} // namespace kvcache
