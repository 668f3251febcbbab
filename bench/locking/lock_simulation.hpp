// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <queue>
#include <span>
#include <tuple>
#include <vector>

namespace bench {

/// A step of a simulated request: work outside of the lock, then work under it.
struct simulated_step {
    double before = 0.0; ///< Seconds.
    double inside = 0.0; ///< Seconds.
    bool shared = false; ///< Whether other threads may do shared work meanwhile.
};

/// Runs requests on `threads` threads with a core each, which take the next request as they become free, under
/// `locks` locks: request i takes lock i modulo `locks`. A lock is given in the order in which it is asked for, and
/// passes from thread to thread in no time. Returns the seconds until the last request has ended.
[[nodiscard]] inline double simulate_locks(std::span<const std::vector<simulated_step>> requests, std::size_t threads,
                                           std::size_t locks) {
    struct lock {
        double exclusive = 0.0, shared = 0.0; // until when it is held
    };
    struct place {
        std::size_t request = 0, step = 0;
    };
    using arrival = std::tuple<double, std::size_t>; // time at which a thread asks for a lock, and the thread
    std::vector<lock> held(locks);
    std::vector<place> at(threads);
    std::priority_queue<arrival, std::vector<arrival>, std::greater<>> waiting;
    std::size_t next = 0;
    double end = 0.0;
    const auto go_on = [&](std::size_t thread, double now) {
        place& here = at[thread];
        while (here.step == requests[here.request].size()) {
            end = std::max(end, now);
            if (next == requests.size())
                return;
            here = {next++, 0};
        }
        waiting.emplace(now + requests[here.request][here.step].before, thread);
    };
    for (std::size_t thread = 0; thread < threads && next < requests.size(); ++thread) {
        at[thread] = {next++, 0};
        go_on(thread, 0.0);
    }
    while (!waiting.empty()) {
        const auto [asked, thread] = waiting.top();
        waiting.pop();
        place& here = at[thread];
        const simulated_step& step = requests[here.request][here.step++];
        lock& of = held[here.request % locks];
        const double begin = std::max(asked, step.shared ? of.exclusive : std::max(of.exclusive, of.shared));
        double& until = step.shared ? of.shared : of.exclusive;
        until = std::max(until, begin + step.inside);
        go_on(thread, begin + step.inside);
    }
    return end;
}

} // namespace bench
