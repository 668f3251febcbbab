// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

namespace kvcache::inline KVCACHE_ABI {

/// The revision of the numeric contract: the order of every reduction, the polynomials, the tile and split
/// lengths. It changes whenever the same inputs may give other bits, and it is part of a cache's identity.
inline constexpr unsigned numeric_contract_revision = 1;

/// The revision of the format of records: what snapshots and tiers keep (docs/format.md). It changes with every byte
/// that means something else, and it is part of a cache's identity, so that records of another one are not found.
inline constexpr unsigned record_format_revision = 1;

} // namespace kvcache
