// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <lmdb.h>

namespace kvcache { inline namespace KVCACHE_ABI { namespace tier {

/// When a commit reaches the disk. A killed process loses no commit under any of them.
enum class sync_policy : unsigned {
    /// Before the next commit: a power failure loses no committed record.
    every_commit = 0,
    /// A power failure may lose the last commit; the store stays consistent.
    all_but_last = MDB_NOMETASYNC,
    /// Whenever the system writes: it may corrupt a store whose writes are reordered.
    by_the_system = MDB_NOSYNC,
};

}}} // namespace kvcache::tier
