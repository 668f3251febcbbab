// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <cstdint>
#if defined(__unix__) || defined(__APPLE__)
#include <ctime> // <chrono> is a tenth of what an empty file with a cache compiles
#else
#include <chrono>
#endif

namespace kvcache { inline namespace KVCACHE_ABI {

/// Nanoseconds since some moment, by a clock that is never set back.
[[nodiscard]] inline std::int64_t monotonic_nanoseconds() noexcept {
#if defined(__unix__) || defined(__APPLE__)
    std::timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
#else
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
#endif
}

}} // namespace kvcache
