// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/platform/standard.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace testing {

/// The properties that a policy violates, each named once. Empty if all hold.
using violations = std::vector<std::string>;

namespace detail {

inline void check_property(violations& broken, bool holds, const char* property) {
    if (!holds && ranges::find(broken, property) == broken.end())
        broken.emplace_back(property);
}

// A random generator with a seed (splitmix64).
class choices {
public:
    explicit choices(std::uint64_t seed) : state_(seed) {}

    /// Returns 64 random bits.
    [[nodiscard]] std::uint64_t bits() {
        std::uint64_t x = state_ += 0x9e3779b97f4a7c15ull;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
        return x ^ (x >> 31);
    }
    /// Returns an integer below `bound`; zero if `bound` is zero.
    [[nodiscard]] std::size_t below(std::size_t bound) {
        return bound == 0 ? 0 : static_cast<std::size_t>(bits() % bound);
    }
    /// Returns true with probability 1/n.
    [[nodiscard]] bool one_in(std::size_t n) { return below(n) == 0; }

private:
    std::uint64_t state_;
};

} // namespace detail

}}} // namespace kvcache::testing
