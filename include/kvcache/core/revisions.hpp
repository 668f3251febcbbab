// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The revision of the numeric contract: the order of every reduction, the polynomials, the tile and split lengths. It
/// changes whenever the same inputs may give different bits. It is part of a cache's identity.
inline constexpr unsigned numeric_contract_revision = 1;

/// The revision of the record format of snapshots and tiers (docs/format.md). It changes whenever the meaning of any
/// byte changes. It is part of a cache's identity, so records of another revision are not found.
inline constexpr unsigned record_format_revision = 1;

}} // namespace kvcache
