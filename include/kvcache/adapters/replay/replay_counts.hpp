// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The results of a replayed workload.
struct replay_counts {
    std::uint64_t requests = 0;   ///< Number of prompts; for objects, accesses.
    std::uint64_t accesses = 0;   ///< Blocks or objects requested.
    std::uint64_t hits = 0;       ///< Requested blocks or objects that were present; of a prompt, the longest prefix.
    std::uint64_t tokens = 0;     ///< Tokens of the prompts; for objects, bytes requested.
    std::uint64_t hit_tokens = 0; ///< Tokens (or bytes) in hits.
    double work = 0.0;            ///< Work of prefilling every prompt, in units of `prefill_work`; for objects, 0.
    double saved_work = 0.0;      ///< Work saved by hits.

    [[nodiscard]] std::uint64_t misses() const noexcept { return accesses - hits; }

    /// Ratios from 0 to 1; 0 if nothing was requested.
    [[nodiscard]] double hit_ratio() const noexcept {
        return ratio(static_cast<double>(hits), static_cast<double>(accesses));
    }
    [[nodiscard]] double token_hit_ratio() const noexcept {
        return ratio(static_cast<double>(hit_tokens), static_cast<double>(tokens));
    }
    [[nodiscard]] double work_hit_ratio() const noexcept { return ratio(saved_work, work); }

    friend bool operator==(const replay_counts&, const replay_counts&) = default;

private:
    [[nodiscard]] static double ratio(double part, double whole) noexcept { return whole > 0.0 ? part / whole : 0.0; }
};

}} // namespace kvcache
