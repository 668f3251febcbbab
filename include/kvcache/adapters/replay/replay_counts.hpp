// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <cstdint>

namespace kvcache::inline KVCACHE_ABI {

/// What a replayed workload came to.
struct replay_counts {
    std::uint64_t requests = 0;   ///< Prompts; for objects, accesses.
    std::uint64_t accesses = 0;   ///< Blocks or objects asked for.
    std::uint64_t hits = 0;       ///< Of these, present: of a prompt, the leading run.
    std::uint64_t tokens = 0;     ///< Of the prompts; for objects, bytes asked for.
    std::uint64_t hit_tokens = 0; ///< Of these, in hits.
    double work = 0.0;            ///< Prefilling every prompt, in `prefill_work`; for objects, 0.
    double saved_work = 0.0;      ///< Of this, what hits saved.

    [[nodiscard]] std::uint64_t misses() const noexcept { return accesses - hits; }

    /// Shares from 0 to 1; 0 where nothing was asked for.
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

} // namespace kvcache
