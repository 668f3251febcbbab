// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/id.hpp>

#include <cstddef>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Which rows of a slice need logits.
enum class logits_mode { none, last, all };

/// Rows of one sequence in a batch: tokens at the lease's rows [row, row + tokens.size()), or at `rows`.
template <class Lease>
struct batch_slice {
    const Lease* lease = nullptr;
    std::size_t row = 0;
    std::span<const token_id> tokens = {};
    logits_mode wanted = logits_mode::last;
    std::span<const std::size_t> rows = {};   ///< Rows of the lease, ascending, if they are not consecutive.
    std::span<const std::size_t> limits = {}; ///< Last position that each token sees; empty: its own position.

    /// Row of the lease for token `i`.
    [[nodiscard]] std::size_t row_of(std::size_t i) const noexcept { return rows.empty() ? row + i : rows[i]; }
    /// Position of token `i`.
    [[nodiscard]] std::size_t position(std::size_t i) const { return lease->first() + row_of(i); }
    /// Last position that token `i` sees.
    [[nodiscard]] std::size_t limit(std::size_t i) const { return limits.empty() ? position(i) : limits[i]; }

    /// Number of rows that need logits; they are the last ones.
    [[nodiscard]] std::size_t wanted_rows() const noexcept {
        return wanted == logits_mode::all ? tokens.size() : wanted == logits_mode::last && !tokens.empty() ? 1 : 0;
    }
};

}} // namespace kvcache
