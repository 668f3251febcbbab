// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/tier/concept.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace tier {

/// The callable that `read_run` calls with the index of a record in its run and the record's bytes; it returns false
/// to stop. It stands for any callable of this form.
struct tier_run_use {
    bool operator()(std::size_t index, std::span<const std::byte> bytes) const;
};

/// A tier that reads a run of records in one call, because each request has a high latency. `count_prefix_hits`
/// returns how many leading records are present. `read_run` reads records in order until one is absent or the
/// callable returns false, and returns the number of records passed on; it returns an error if there was none.
template <class S>
concept run_tier_state = tier_state<S> && requires(S s, std::span<const sha256_digest> names, const tier_run_use& use) {
    { s.count_prefix_hits(names) } -> std::same_as<std::size_t>;
    { s.read_run(names, use) } -> std::same_as<result<std::size_t>>;
};

/// Returns the number of leading records that a tier holds.
template <tier_state Tier>
[[nodiscard]] std::size_t count_prefix_hits(Tier& tier, std::span<const sha256_digest> names) {
    if constexpr (run_tier_state<Tier>) {
        return names.empty() ? 0 : tier.count_prefix_hits(names);
    } else {
        std::size_t there = 0;
        while (there < names.size() && tier.contains(names[there]))
            ++there;
        return there;
    }
}

/// Returns whether a tier holds each of the records, in one call where the tier can (`present`, of the same form). A
/// hint as `contains` is, but one that is asked for: a store that other processes write is looked at.
template <tier_state Tier>
[[nodiscard]] std::vector<bool> present(Tier& tier, std::span<const sha256_digest> names) {
    if constexpr (requires { tier.present(names); }) {
        return tier.present(names);
    } else {
        std::vector<bool> there(names.size());
        for (std::size_t i = 0; i < names.size(); ++i)
            if constexpr (run_tier_state<Tier>) // contains() may send no request
                there[i] = tier.count_prefix_hits(names.subspan(i, 1)) == 1;
            else
                there[i] = tier.contains(names[i]);
        return there;
    }
}

/// Reads one record of a tier that reads runs.
template <class Tier, class Use>
[[nodiscard]] result<bool> read_one(Tier& tier, const sha256_digest& name, Use&& use) {
    const auto given = tier.read_run(std::span(&name, 1), [&](std::size_t, std::span<const std::byte> bytes) {
        use(bytes);
        return true;
    });
    if (!given)
        return given.error();
    return *given == 1;
}

/// Reads records in order until one is absent or `use(index, bytes)` returns false. Returns the number of records
/// passed to `use`. Errors: those of the tier, if no record was passed.
template <tier_state Tier, class Use>
[[nodiscard]] result<std::size_t> read_run(Tier& tier, std::span<const sha256_digest> names, Use&& use) {
    if constexpr (run_tier_state<Tier>) {
        if (names.empty())
            return std::size_t{0};
        return tier.read_run(names, use);
    } else {
        bool more = true;
        for (std::size_t i = 0; i < names.size(); ++i) {
            const auto found = tier.read(names[i], [&](std::span<const std::byte> bytes) { more = use(i, bytes); });
            if (!found && i == 0)
                return found.error();
            if (!found || !*found)
                return i;
            if (!more)
                return i + 1;
        }
        return names.size();
    }
}

}}} // namespace kvcache::tier
