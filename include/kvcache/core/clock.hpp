// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#if defined(__unix__) || defined(__APPLE__)
#include <ctime> // <chrono> is a tenth of what an empty file with a cache compiles
#else
#include <chrono>
#endif

namespace kvcache { inline namespace KVCACHE_ABI {

/// Seconds since some moment, by a clock that is never set back.
[[nodiscard]] inline double monotonic_seconds() noexcept {
#if defined(__unix__) || defined(__APPLE__)
    std::timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
#else
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
#endif
}

}} // namespace kvcache
