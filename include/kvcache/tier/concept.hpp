// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/role.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Metadata of a record that a tier receives.
struct tier_entry {
    sha256_digest name = {};
    double cost = 0.0;       ///< Seconds that a hit saves; 0 if unknown.
    std::uint32_t depth = 0; ///< Number of records before it in its chain.
};

/// Contents and counters of a tier. If several processes share a store, each counts its own calls.
struct tier_counts {
    std::size_t records = 0;   ///< Records present now.
    std::size_t bytes = 0;     ///< Bytes of the records present now.
    std::uint64_t hits = 0;    ///< Records read.
    std::uint64_t misses = 0;  ///< Records requested but absent.
    std::uint64_t written = 0; ///< Records written.
    std::uint64_t bytes_written = 0;
    std::uint64_t evicted = 0;  ///< Records evicted for other records.
    std::uint64_t dropped = 0;  ///< Records accepted but not written: no room, no time, or already present.
    std::uint64_t failures = 0; ///< Calls that failed because of the store or the system, later writes included.

    friend bool operator==(const tier_counts&, const tier_counts&) = default;
};

/// The callable that `read` calls with a record's bytes, which are valid during the call. It stands for any callable
/// of this form.
struct tier_use {
    void operator()(std::span<const std::byte> bytes) const;
};

/// The working state of a tier: records by name, kept beyond the cache's memory within a limit of their own. A tier
/// guarantees no integrity: a record may come back damaged, and the reader checks it (record/record.hpp).
///
/// `read` calls its argument with the record's bytes and returns whether it did; false is a miss. `put` accepts a
/// record in pieces and copies them before it returns; the record may be written later, or never. `contains` is a
/// cheap hint. `erase` removes a record that its reader has rejected. `flush` returns after everything accepted is
/// written. `status` returns what is wrong with the store, if anything; such a tier only misses. No call throws for a
/// fault of the store, every call may be made by several threads at once, and failed calls are counted. Two members
/// are optional: `is_null()`, if the tier never holds a record, so that none is made for it; `parallel_reads()`, the
/// useful number of threads that read different records, if it is more than one.
template <class S>
concept tier_state = std::movable<S> &&
    requires(S s, const S c, const tier_entry& entry, const sha256_digest& name,
             std::span<const std::span<const std::byte>> pieces, const tier_use& use) {
    { s.read(name, use) } -> std::same_as<result<bool>>;
    { s.put(entry, pieces) } -> std::same_as<result<void>>;
    { s.contains(name) } -> std::same_as<bool>;
    { s.erase(name) } -> std::same_as<result<void>>;
    { s.flush() } -> std::same_as<result<void>>;
    { c.status() } -> std::same_as<result<void>>;
    { c.counts() } -> std::same_as<tier_counts>;
};

/// Returns whether a tier never holds a record. Cost: O(1).
template <tier_state Tier>
[[nodiscard]] bool is_null(const Tier& tier) noexcept {
    if constexpr (requires { tier.is_null(); })
        return tier.is_null();
    else
        return false;
}

/// Returns the useful number of threads that read different records of a tier: one, if the tier does not define it.
template <tier_state Tier>
[[nodiscard]] std::size_t max_parallel_reads(const Tier& tier) noexcept {
    if constexpr (requires { tier.parallel_reads(); })
        return tier.parallel_reads();
    else
        return 1;
}

/// A policy that stores pages after they are evicted from memory.
template <class P>
concept tier_policy = plays<P, tier_role> && requires(const P p) {
    p.open();
} && tier_state<opened_by<P>>;

}} // namespace kvcache
