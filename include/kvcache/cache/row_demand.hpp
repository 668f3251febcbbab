// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <cstddef>
#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI {

/// What a reservation of rows takes.
struct row_demand {
    std::uint32_t used = 0;  ///< Rows of the sequence's last page that are in use.
    std::size_t in_tail = 0; ///< Rows that go into it.
    bool copies = false;     ///< It is shared, so it is copied first.
    std::size_t fresh = 0;   ///< Pages after it.
    std::size_t at_once = 0; ///< Rows that run at a time.
    std::size_t pages = 0;   ///< Pages in all, with those set aside for residual rows.
};

}} // namespace kvcache
