// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/locking/concept.hpp>
#include <kvcache/testing/violations.hpp>

#include <cstddef>
#include <mutex>
#include <thread>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace testing {

/// Tests the required properties of a locking policy that provides mutual exclusion.
template <locking_policy Policy>
[[nodiscard]] violations locking_conformance(const Policy&, std::size_t threads) {
    violations broken;
    typename Policy::state lock;
    constexpr std::size_t rounds = 2000;
    std::size_t inside = 0, most = 0, sum = 0;
    std::vector<std::thread> workers;
    for (std::size_t i = 0; i < threads; ++i)
        workers.emplace_back([&] {
            for (std::size_t round = 0; round < rounds; ++round) {
                const std::lock_guard guard(lock);
                most = ++inside > most ? inside : most;
                ++sum;
                --inside;
            }
        });
    for (std::thread& worker : workers)
        worker.join();
    detail::check_property(broken, most <= 1, "one thread is inside at a time");
    detail::check_property(broken, sum == threads * rounds, "what one thread has done the next one sees");
    return broken;
}

}}} // namespace kvcache::testing
