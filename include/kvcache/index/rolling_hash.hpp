// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/id.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace index {

/// The hash of any run of a text's tokens, computed from prefix hashes: a polynomial modulo 2^64, then mixed. Not
/// collision-resistant against an adversary: equal hashes are a hint that a comparison of the tokens must confirm.
/// Cost: O(n), then O(1) a run.
class rolling_hash {
public:
    rolling_hash(std::span<const token_id> tokens, std::uint64_t salt)
        : salt_(mix(salt)), sums_(tokens.size() + 1), powers_(tokens.size() + 1) {
        powers_[0] = 1;
        for (std::size_t i = 0; i < tokens.size(); ++i) {
            sums_[i + 1] = sums_[i] * factor + mix(static_cast<std::uint64_t>(index_of(tokens[i])));
            powers_[i + 1] = powers_[i] * factor;
        }
    }

    /// The hash of the tokens [first, last).
    [[nodiscard]] std::uint64_t operator()(std::size_t first, std::size_t last) const noexcept {
        return mix((sums_[last] - sums_[first] * powers_[last - first]) ^ salt_);
    }

private:
    static constexpr std::uint64_t factor = 0x9e3779b97f4a7c15u;

    // The finalizer of splitmix64 (Steele, Lea & Flood 2014).
    [[nodiscard]] static constexpr std::uint64_t mix(std::uint64_t x) noexcept {
        x += factor;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        return x ^ (x >> 31);
    }

    std::uint64_t salt_;
    std::vector<std::uint64_t> sums_, powers_;
};

}}} // namespace kvcache::index
