// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

#include <sys/resource.h>

namespace server {

/// A number that the system states, in bytes; `otherwise` where it does not. `after` is the word before the number; the
/// first number of the file if it is empty.
inline std::uint64_t stated_bytes(const char* file, const std::string& after, std::uint64_t otherwise) {
    std::ifstream in(file);
    for (std::string word; !after.empty() && word != after;)
        if (!(in >> word))
            return otherwise;
    std::uint64_t number = 0; // "max" is no number
    return in >> number ? number : otherwise;
}

/// Bytes that this process may still allocate: what the system has, what its control group allows, and what its limit
/// of address space leaves.
inline std::uint64_t available_memory() {
    constexpr std::uint64_t any = std::numeric_limits<std::uint64_t>::max();
    const auto left = [](std::uint64_t limit, std::uint64_t used) {
        return limit == any ? any : limit - std::min(limit, used);
    };
    const std::uint64_t kibibytes = stated_bytes("/proc/meminfo", "MemAvailable:", any);
    std::uint64_t least = kibibytes == any ? any : kibibytes << 10;
    least = std::min(least, left(stated_bytes("/sys/fs/cgroup/memory.max", "", any),
                                 stated_bytes("/sys/fs/cgroup/memory.stat", "anon", 0)));
    least = std::min(least, left(stated_bytes("/sys/fs/cgroup/memory/memory.limit_in_bytes", "", any),
                                 stated_bytes("/sys/fs/cgroup/memory/memory.stat", "total_rss", 0)));
    rlimit space{};
    if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY)
        least = std::min(least, left(space.rlim_cur, stated_bytes("/proc/self/status", "VmSize:", 0) << 10));
    return least;
}

} // namespace server
