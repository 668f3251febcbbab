// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/residual_page.hpp>
#include <kvcache/core/page_table.hpp>

#include <span>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The pages of one sequence, as attention reads them.
struct sequence_pages {
    std::span<const page_entry> table = {};
    /// Residual pages by table entry, for a codec of whole pages: the full-precision rows where a query of this
    /// sequence may read them. Null elsewhere; entries past its end count as null.
    std::span<const codec::residual_page* const> residual = {};
    bool spliced = false; ///< Rows of one page may be in several entries, and bases change often (see spliced_tiles).
};

}} // namespace kvcache
