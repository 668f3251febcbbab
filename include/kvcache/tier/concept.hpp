// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest256.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/core/role.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvcache::inline KVCACHE_ABI {

/// What a tier is told of a record.
struct tier_entry {
    digest256 name = {};
    double cost = 0.0;       ///< What a hit saves, in seconds; 0 if nobody knows.
    std::uint32_t depth = 0; ///< Records before it in its chain.
};

/// What a tier has and has done. Of several processes on one store each counts its own doings.
struct tier_counts {
    std::size_t records = 0;   ///< There now.
    std::size_t bytes = 0;     ///< That they have.
    std::uint64_t hits = 0;    ///< Records that were read.
    std::uint64_t misses = 0;  ///< Asked for and not there.
    std::uint64_t written = 0; ///< Records written for good.
    std::uint64_t bytes_written = 0;
    std::uint64_t evicted = 0;  ///< Records that left for others.
    std::uint64_t dropped = 0;  ///< Records that were handed over and not written: no room, no time, known already.
    std::uint64_t failures = 0; ///< Calls that the world refused.

    friend bool operator==(const tier_counts&, const tier_counts&) = default;
};

/// What `read` calls with a record's bytes, which stay while it runs. It stands for any callable of this form.
struct tier_use {
    void operator()(std::span<const std::byte> bytes) const;
};

/// The working state of a tier: bytes by name, kept past the cache's memory, within a budget of its own. It never lies
/// and never vouches: what it gives back may be damaged, and whoever reads checks (record/record.hpp).
///
/// `read` calls its argument with the record's bytes and says whether it did: false is a miss. `put` hands over a
/// record in pieces, which are the tier's own when it returns; it may be written later, or never. `contains` is a hint
/// that costs little. `erase` takes a record out that its reader has refused. `flush` returns once all that was handed
/// over is written. `status` says what is wrong with the store, if anything: such a tier only misses. No call throws
/// for the world's faults, all may be made by several threads at once, and what they refuse is counted. Two things it
/// may say besides: `holds_nothing()`, if it never has a record, so that none is made for it; `readers()`, how many
/// threads are of use for reading different records, where that is more than one.
template <class S>
concept tier_state = std::movable<S> &&
    requires(S s, const S c, const tier_entry& entry, const digest256& name,
             std::span<const std::span<const std::byte>> pieces, const tier_use& use) {
    { s.read(name, use) } -> std::same_as<result<bool>>;
    { s.put(entry, pieces) } -> std::same_as<result<void>>;
    { s.contains(name) } -> std::same_as<bool>;
    { s.erase(name) } -> std::same_as<result<void>>;
    { s.flush() } -> std::same_as<result<void>>;
    { c.status() } -> std::same_as<result<void>>;
    { c.counts() } -> std::same_as<tier_counts>;
};

/// Whether a tier never has a record. Cost: O(1).
template <tier_state Tier>
[[nodiscard]] bool holds_nothing(const Tier& tier) noexcept {
    if constexpr (requires { tier.holds_nothing(); })
        return tier.holds_nothing();
    else
        return false;
}

/// How many threads are of use for reading different records of a tier: one, if it does not say.
template <tier_state Tier>
[[nodiscard]] std::size_t readers_of(const Tier& tier) noexcept {
    if constexpr (requires { tier.readers(); })
        return tier.readers();
    else
        return 1;
}

/// Where pages stay when they leave memory.
template <class P>
concept tier_policy = plays<P, tier_role> && requires(const P p) {
    p.open();
} && tier_state<opened_by<P>>;

} // namespace kvcache
