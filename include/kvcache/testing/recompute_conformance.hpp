// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/recompute/concept.hpp>
#include <kvcache/testing/violations.hpp>

#include <cstddef>
#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI { namespace testing {

/// Tests the required properties of a recompute policy over every hit of every short prompt, and of some long ones.
template <recompute_policy Policy>
[[nodiscard]] violations recompute_conformance(const Policy& policy, std::uint64_t seed) {
    violations broken;
    detail::choices choose(seed);
    for (const std::uint32_t tokens : {16u, 64u}) {
        const auto state = policy.open({.tokens = tokens});
        const auto tried = [&](std::size_t hit, std::size_t total) {
            const std::size_t first = state.first_computed(hit, total);
            detail::check_property(broken, first <= hit, "no token after the hit is reused");
            detail::check_property(broken, total == 0 || first < total, "at least one token runs");
            detail::check_property(broken, first == state.first_computed(hit, total), "the same hit has the same plan");
        };
        for (std::size_t total = 0; total <= 200; ++total)
            for (std::size_t hit = 0; hit <= total; ++hit)
                tried(hit, total);
        for (std::size_t rounds = 1000; rounds > 0; --rounds) {
            const std::size_t total = choose.below(1'000'000);
            tried(choose.below(total + 1), total);
        }
    }
    return broken;
}

}}} // namespace kvcache::testing
