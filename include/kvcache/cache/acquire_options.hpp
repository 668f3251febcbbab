// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/reserve_options.hpp>
#include <kvcache/core/abi.hpp>

namespace kvcache { inline namespace KVCACHE_ABI {

/// What acquire does about a prefix of the prompt that another lease computes at the moment, made by acquire too.
enum class pending_prefix {
    compute, ///< Nothing: both compute it.
    refuse,  ///< Returns the error `pending`; acquire again when a lease has ended.
    wait,    ///< Waits until no lease computes more of it than is cached. Needs a locking with `wait`; otherwise it
             ///< refuses.
};

/// How a prompt is acquired.
struct acquire_options {
    pending_prefix pending = pending_prefix::compute;
    reserve_options reserve = {};
};

}} // namespace kvcache
