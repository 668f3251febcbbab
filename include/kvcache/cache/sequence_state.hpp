// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/id.hpp>
#include <kvcache/core/page_table.hpp>

#include <cstddef>
#include <optional>
#include <vector>

namespace kvcache {

/// The books of one sequence: its tokens, the pages that hold them, and what a lease has under way. Every live one is
/// on a ring of its cache, so that `check` can count every holder.
struct sequence_state {
    std::vector<token_id> tokens = {};
    std::vector<page_entry> table = {};
    std::size_t sealed = 0; ///< Leading pages that are full and in the index.

    // A lease: rows behind `tokens` that the table has already, and how to take them back.
    std::size_t leased = 0;
    std::size_t pages_before = 0;
    std::optional<page_entry> tail_before = {}; ///< The last entry as it was; if its page differs, it is still held.

    sequence_state* previous = nullptr;
    sequence_state* next = nullptr;
};

} // namespace kvcache
