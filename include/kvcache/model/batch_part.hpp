// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/id.hpp>

#include <cstddef>
#include <span>

namespace kvcache::inline KVCACHE_ABI {

/// Which rows of a part want logits.
enum class logits_of { none, last, all };

/// Rows of one sequence in a batch: tokens that run at the lease's rows [row, row + tokens.size()), or at `rows`.
template <class Lease>
struct batch_part {
    const Lease* lease = nullptr;
    std::size_t row = 0;
    std::span<const token_id> tokens = {};
    logits_of wanted = logits_of::last;
    std::span<const std::size_t> rows = {};   ///< The lease's rows, ascending, where they are not consecutive.
    std::span<const std::size_t> limits = {}; ///< The last position each token sees; none: its own, which is right.

    /// The lease's row of its token `i`.
    [[nodiscard]] std::size_t row_of(std::size_t i) const noexcept { return rows.empty() ? row + i : rows[i]; }
    /// The position of its token `i`.
    [[nodiscard]] std::size_t position(std::size_t i) const { return lease->first() + row_of(i); }
    /// The last position that its token `i` sees.
    [[nodiscard]] std::size_t limit(std::size_t i) const { return limits.empty() ? position(i) : limits[i]; }

    /// How many of its last rows want logits.
    [[nodiscard]] std::size_t wanted_rows() const noexcept {
        return wanted == logits_of::all ? tokens.size() : wanted == logits_of::last && !tokens.empty() ? 1 : 0;
    }
};

} // namespace kvcache
