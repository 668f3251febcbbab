// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/kernel/thread_pool.hpp>

#include <algorithm>
#include <cstddef>
#include <system_error>
#include <thread>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Opens a thread pool of this many threads, the caller included; 0: all hardware threads. It has one thread where
/// the system has no more.
KVCACHE_LAZY [[nodiscard]] inline thread_pool open_threads(std::size_t threads) {
    const std::size_t wanted = threads != 0 ? threads : std::max<std::size_t>(std::thread::hardware_concurrency(), 1);
    try {
        return thread_pool(wanted);
    } catch (const std::system_error&) { // the system has no more threads
        return thread_pool(1);
    }
}

}} // namespace kvcache
