// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <system_error>

#include "available_memory.hpp"
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

namespace server {

/// How many connections the system's limits have room for.
struct connection_room {
    std::size_t connections = 0;
    std::string limit; ///< Which limit allows no more than these, in words; empty if all that were wanted fit.
};

namespace detail {

constexpr std::uint64_t no_limit = std::numeric_limits<std::uint64_t>::max();

template <class Resource>
std::uint64_t soft_limit(Resource which) {
    rlimit now{};
    return ::getrlimit(which, &now) != 0 || now.rlim_cur == RLIM_INFINITY ? no_limit : now.rlim_cur;
}

// Open descriptors of this process; a guess where the system does not tell.
inline std::uint64_t open_descriptors() {
    std::error_code fault;
    std::uint64_t count = 0;
    for (std::filesystem::directory_iterator at("/proc/self/fd", fault), end; !fault && at != end; at.increment(fault))
        ++count;
    return fault ? 64 : count;
}

// Threads of all processes of this process's user.
inline std::uint64_t threads_of_user() {
    std::error_code fault;
    std::uint64_t count = 0;
    for (std::filesystem::directory_iterator at("/proc", fault), end; !fault && at != end; at.increment(fault)) {
        std::ifstream in(at->path() / "status"); // fails for a process that has ended, and for what is no process
        std::uint64_t user = no_limit, threads = 0;
        for (std::string word; in >> word && word != "Threads:";)
            if (word == "Uid:")
                in >> user;
        if (in >> threads && user == ::getuid())
            count += threads;
    }
    return count;
}

// Processes and threads that the control groups of this process still allow. The groups enclose each other.
inline std::uint64_t threads_of_groups() {
    std::uint64_t least = no_limit;
    std::ifstream groups("/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) { // number:controllers:/path
        const std::size_t first = line.find(':'), second = line.find(':', first + 1);
        if (second == line.npos)
            continue;
        const std::string which = line.substr(first + 1, second - first - 1);
        if (!which.empty() && which != "pids")
            continue;
        const std::filesystem::path root = which.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/pids";
        for (std::filesystem::path at = line.substr(second + 1);; at = at.parent_path()) {
            const auto group = root / at.relative_path();
            const auto most = stated_bytes((group / "pids.max").c_str(), "", no_limit);
            const auto used = stated_bytes((group / "pids.current").c_str(), "", 0);
            if (most != no_limit)
                least = std::min(least, most - std::min(most, used));
            if (at == at.parent_path())
                break;
        }
    }
    return least;
}

// Addresses of one thread: its stack, the page below it, and the buffer of its connection.
inline std::uint64_t thread_bytes() {
    std::size_t stack = std::size_t{8} << 20, guard = 4096;
    pthread_attr_t usual;
    if (::pthread_attr_init(&usual) == 0) {
        ::pthread_attr_getstacksize(&usual, &stack);
        ::pthread_attr_getguardsize(&usual, &guard);
        ::pthread_attr_destroy(&usual);
    }
    return stack + guard + (std::uint64_t{128} << 10);
}

} // namespace detail

/// Raises this process's soft limit of descriptors as far as `connections` need and its hard limit allows, and returns
/// how many of them descriptors, threads and addresses suffice for. Each takes a descriptor, a thread and its stack;
/// `reserve` connections are kept besides, with a spare descriptor each. Of the addresses that neither threads nor
/// `other_bytes` (memory that the process will still map) take, half is left for requests.
[[nodiscard]] inline connection_room room_for_connections(std::size_t connections, std::size_t reserve,
                                                          std::uint64_t other_bytes) {
    connection_room made{.connections = connections, .limit = {}};
    const auto allow = [&](std::uint64_t most, const std::string& limit) {
        if (most < made.connections)
            made = {.connections = static_cast<std::size_t>(most), .limit = limit};
    };
    const auto beyond = [](std::uint64_t limit, std::uint64_t used) { return limit - std::min(limit, used); };
    // A connection that is accepted while the one whose place it takes is being closed; files and links of a tier.
    constexpr std::uint64_t slack = 16;

    const std::uint64_t others = detail::open_descriptors() + 2 * reserve + slack;
    if (rlimit now{}; ::getrlimit(RLIMIT_NOFILE, &now) == 0 && now.rlim_cur < others + connections) {
        now.rlim_cur = std::min<rlim_t>(now.rlim_max, others + connections);
        (void)::setrlimit(RLIMIT_NOFILE, &now);
    }
    const std::uint64_t descriptors = detail::soft_limit(RLIMIT_NOFILE);
    if (descriptors != detail::no_limit)
        allow(beyond(descriptors, others), std::to_string(descriptors) + " descriptors (ulimit -n)");

    if (const auto threads = detail::soft_limit(RLIMIT_NPROC); threads != detail::no_limit && ::geteuid() != 0)
        allow(beyond(threads, detail::threads_of_user() + reserve + slack),
              std::to_string(threads) + " processes and threads of this user (ulimit -u)");
    if (const auto threads = detail::threads_of_groups(); threads != detail::no_limit)
        allow(beyond(threads, reserve + slack),
              "a control group that has room for " + std::to_string(threads) + " threads (pids.max)");

    if (const auto space = detail::soft_limit(RLIMIT_AS); space != detail::no_limit) {
        const std::uint64_t used = stated_bytes("/proc/self/status", "VmSize:", 0) << 10;
        allow(beyond(beyond(space, used + other_bytes) / 2 / detail::thread_bytes(), reserve),
              std::to_string(space >> 20) + " MiB of addresses (ulimit -v)");
    }
    return made;
}

} // namespace server
